"""Hand-made ledgers of members whose keys the test holds, for tests of single rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self
from unittest.mock import patch

from distro_node.crypto.envelope import Envelope, signing_bytes
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.crypto.identity import Identity, PeerId
from distro_node.protocol.chain.beacon import REVEALED_AFTER, Beacon
from distro_node.protocol.chain.commitments import SECRET_BYTES, SecretPair
from distro_node.protocol.chain.fork_search import ChainComparison, FetchBackoff
from distro_node.protocol.chain.indexed_chain import IndexedChain
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.snapshot_rounds import snapshot_round
from distro_node.protocol.chain.sync import SyncAnswer, SyncQuery, answer_to
from distro_node.protocol.member.inputs import Loaded
from distro_node.protocol.member.member import Member
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.manifest import AdmissionSpec, Manifest
from distro_node.protocol.wire.membership import Membership, Votes
from distro_node.protocol.wire.messages import (
    AdmissionEntry,
    Announcement,
    Ballot,
    BallotHalf,
    BallotKind,
    Certificate,
    Decided,
    DepartureEntry,
    Evidence,
    JoinRequest,
    Leave,
    Message,
    Record,
    RecordId,
    SignedBallot,
    SnapshotEntry,
    UpdateEntry,
)
from simulation.swarm import identity, toy_manifest

FINGERPRINT = 7
"""Fingerprint of the parameters after any round: these tests train nothing."""


def envelope(manifest: Manifest, who: Identity, kind: str, message: Message) -> Envelope:
    body = encode(message)
    signature = who.sign(signing_bytes(kind, manifest.swarm, body))
    return Envelope(
        kind=kind, swarm=manifest.swarm, sender=who.peer, body=body, signature=signature
    )


def ticket(manifest: Manifest, issuer: Identity, peer: PeerId) -> bytes:
    return issuer.sign(signing_bytes("ticket", manifest.swarm, peer))


def update_of(peer: PeerId, round_: int) -> ContentId:
    return content_id(peer + round_.to_bytes(8, "big"))


@contextmanager
def voting(votes: Mapping[PeerId, int]) -> Iterator[None]:
    """Give the members of every chain these votes."""

    def said(self: IndexedChain, round: int) -> Votes:
        return Votes.of(votes, self.membership(round))

    with patch.object(IndexedChain, "votes", said):
        yield


Answering = Callable[[SyncQuery], SyncAnswer | None]
"""A peer's function from question to answer."""


class Chain:
    """A ledger, and the keys of all its members. Defaults are those of a quiet round."""

    def __init__(self, count: int = 4, **changes: Any) -> None:
        changes.setdefault("snapshot_interval", 1000)
        self.manifest = toy_manifest(**changes)
        self.ledger = Ledger(self.manifest)
        self.keys = {who.peer: who for who in map(identity, range(max(64, count)))}
        if count:
            self.grow(admitted=[self.admission(i) for i in range(1, count)])

    @property
    def membership(self) -> Membership:
        return self.ledger.membership(len(self.ledger))

    @property
    def leaders(self) -> tuple[PeerId, ...]:
        """The leaders of this round's slots, as many as there are members."""
        leaders = self.ledger.leaders(self.round)
        return tuple(leaders[slot] for slot in range(1, 1 + len(self.membership)))

    @property
    def round(self) -> int:
        return len(self.ledger)

    def fork(self) -> Chain:
        """Return another chain that begins like this one."""
        other = Chain(0)
        other.manifest = self.manifest
        other.ledger = self.ledger.truncated(len(self.ledger))
        return other

    def grow_until(self, rounds: int) -> Self:
        """Decide quiet rounds until there are `rounds` of them; return the same chain."""
        while self.round < rounds:
            self.grow()
        return self

    def forged(self, rounds: int) -> Chain:
        """Return a chain of `rounds` other rounds of the same swarm, which the founder can sign at any
        time because it was alone in round 0."""
        other = Chain(0)
        other.manifest = self.manifest
        other.grow(fingerprint=666)
        return other.grow_until(rounds)

    def envelope(self, who: int | PeerId, kind: str, message: Message) -> Envelope:
        return envelope(self.manifest, self._key(who), kind, message)

    def signature(self, who: int | PeerId, kind: str, message: Message) -> bytes:
        return self.envelope(who, kind, message).signature

    def secrets(self, who: int | PeerId, round_: int | None = None) -> SecretPair:
        """Return the secrets to which a member commits in a round, derived from the key as
        `member/beacon_secrets` does."""
        number = self.round if round_ is None else round_
        parent = self.ledger.head if number == self.round else self.ledger.parent(number)
        body, key, swarm = encode([number, parent]), self._key(who), self.manifest.swarm
        beacon, audit = (
            content_id(key.sign(signing_bytes(kind, swarm, body)))[:SECRET_BYTES]
            for kind in ("beacon_secret", "audit_secret")
        )
        return SecretPair(beacon, audit)

    def announcement(self, who: int | PeerId, **changes: Any) -> Announcement:
        drawn = self.ledger.find(Beacon) is not None
        settings: dict[str, Any] = {
            "round": self.round,
            "parent": self.ledger.head,
            "update": update_of(self._key(who).peer, self.round),
            "size": 1000,
            "tokens": 500,
            "loss": 2.5,
            "fingerprint": FINGERPRINT,
            "max_version": self.manifest.version,
            "commitment": self.secrets(who).commitment if drawn else b"",
        }
        return Announcement(**(settings | changes))

    def update(self, who: int | PeerId, **changes: Any) -> UpdateEntry:
        said = self.announcement(who, **changes)
        return UpdateEntry(
            peer=self._key(who).peer,
            update=said.update,
            size=said.size,
            tokens=said.tokens,
            loss=said.loss,
            signature=self.signature(who, "announcement", said),
            capacity=said.capacity,
            max_version=said.max_version,
            commitment=said.commitment,
        )

    def admission(
        self, who: int, round_: int | None = None, invitation: bytes = b""
    ) -> AdmissionEntry:
        request = JoinRequest(self.round if round_ is None else round_, invitation)
        return AdmissionEntry(identity(who).peer, request, self.signature(who, "join", request))

    def leave(self, who: int | PeerId, round_: int | None = None) -> DepartureEntry:
        said = Leave(self.round if round_ is None else round_)
        signature = self.signature(who, "leave", said)
        return DepartureEntry(self._key(who).peer, "left", said.round, signature)

    def silence(self, who: int | PeerId) -> DepartureEntry:
        return DepartureEntry(self._key(who).peer, "silent", 0, b"")

    def record(
        self,
        *,
        updates: Iterable[UpdateEntry] | None = None,
        admitted: Iterable[AdmissionEntry] = (),
        departed: Iterable[DepartureEntry] = (),
        slot: int = 1,
        **changes: Any,
    ) -> Record:
        """Return the next record: by default with all members' updates, without admissions and
        departures."""
        departed = sorted(departed, key=lambda entry: entry.peer)
        silent = {entry.peer for entry in departed if entry.reason == "silent"}
        if updates is None:
            trains = self.manifest.schedule.trains(self.round)
            due = self.ledger.assignments.due(self.round) if trains else frozenset()
            contributors = due.intersection(self.membership.peers) - silent
            updates = [self.update(peer) for peer in contributors]
        interval, closing = (
            self.manifest.rounds.snapshot_interval,
            self.manifest.schedule.closing_round,
        )
        due = snapshot_round(self.round, interval, closing)
        settings: dict[str, Any] = {
            "round": self.round,
            "parent": self.ledger.head,
            "fingerprint": FINGERPRINT,
            "updates": tuple(sorted(updates, key=lambda entry: entry.peer)),
            "admitted": tuple(sorted(admitted, key=lambda entry: entry.peer)),
            "departed": tuple(departed),
            "snapshot": None if due is None else self.snapshot(due),
            "opening": self.reveal(slot),
            "slot": slot,
        }
        return Record(**(settings | changes))

    def reveal(self, slot: int = 1) -> bytes:
        """Return the opening that a slot's leader puts into the next record."""
        beacon, leader = self.ledger.find(Beacon), self.ledger.leaders(self.round)[slot]
        if beacon is None or not beacon.commitment_due(leader, self.round):
            return b""
        return self.secrets(leader, self.round - REVEALED_AFTER).opening("beacon")

    def snapshot(self, round_: int) -> SnapshotEntry:
        return SnapshotEntry(round_, content_id(b"state"), 4 * self.manifest.elements)

    def testimony(
        self, who: int | PeerId, kind: BallotKind, block: RecordId, **changes: Any
    ) -> BallotHalf:
        ballot = self.ballot(block, **changes)
        return BallotHalf(kind, block, ballot.silent, self.signature(who, kind, ballot))

    def evidence(self, who: int | PeerId, *, slot: int = 1, **changes: Any) -> Evidence:
        """Return a proof that a member voted for two blocks in a slot of this round."""
        blocks = sorted(RecordId(content_id(bytes([number]))) for number in range(2))
        first, second = (
            self.testimony(who, "vote", block, slot=slot, **changes) for block in blocks
        )
        peer = self._key(who).peer
        round_ = changes.get("round", self.round)
        parent = changes.get("parent", self.ledger.head)
        return Evidence(peer, round_, parent, slot, first, second)

    def ballot(
        self, record: RecordId, *, slot: int = 1, silent: Iterable[PeerId] = (), **changes: Any
    ) -> Ballot:
        settings: dict[str, Any] = {
            "round": self.round,
            "parent": self.ledger.head,
            "slot": slot,
            "block": record,
            "silent": self.membership.mask(silent),
        }
        return Ballot(**(settings | changes))

    def certificate(
        self,
        record: RecordId,
        *,
        kind: BallotKind = "finalize",
        signers: Sequence[PeerId] | None = None,
        silent: Iterable[PeerId] = (),
        **changes: Any,
    ) -> Certificate:
        """Return a certificate by all members with votes except the silent ones, or by these signers."""
        silent = set(silent)
        if signers is None:
            here = [peer for peer in self.membership.peers if peer not in silent]
            votes = self.ledger.votes(self.round)
            signers = [peer for peer in here if votes[peer]] or here
        ballot = self.ballot(record, silent=silent, **changes)
        return Certificate(
            kind,
            ballot.round,
            ballot.parent,
            ballot.slot,
            ballot.block,
            tuple(
                SignedBallot(peer, ballot.silent, self.signature(peer, kind, ballot))
                for peer in sorted(signers)
            ),
        )

    def decide(self, record: Record, **changes: Any) -> Decided:
        return Decided(record, self.certificate(record.id, **changes))

    def grow(
        self,
        *,
        silent: Iterable[PeerId] = (),
        signers: Sequence[PeerId] | None = None,
        **parts: Any,
    ) -> Decided:
        """Decide the next record and append it."""
        decided = self.decide(self.record(**parts), silent=silent, signers=signers)
        self.ledger.append(decided)
        return decided

    def member(
        self,
        who: int | PeerId,
        *,
        now: float = 0.0,
        start_number: int = 1,
        said: Iterable[Envelope] = (),
        load: bool = True,
        ticket: bytes = b"",
        recall: bool = False,
    ) -> Member:
        """Return a member at the chain's tip that has `said` these messages and, if `load`, has the
        parameters."""
        key = self._key(who)
        member = Member(
            manifest=self.manifest,
            me=key.peer,
            sign=lambda kind, body: Envelope(
                kind=kind,
                swarm=self.manifest.swarm,
                sender=key.peer,
                body=body,
                signature=key.sign(signing_bytes(kind, self.manifest.swarm, body)),
            ),
            ledger=self.ledger.truncated(len(self.ledger)),
            now=now,
            start_number=start_number,
            ticket=ticket,
            recall=recall,
        )
        member.restore(said, now)
        if load:
            member.handle(Loaded(self.round - 1, FINGERPRINT, None), now)
        return member

    def _key(self, who: int | PeerId) -> Identity:
        return identity(who) if isinstance(who, int) else self.keys[who]


def by_invitation() -> tuple[Identity, AdmissionSpec]:
    issuer = identity(60)
    return issuer, AdmissionSpec(policy="invite", issuer=issuer.peer)


def compared(
    ours: Ledger,
    theirs: Ledger | Answering,
    *,
    who: int = 0,
    binding: bool = True,
    abandoned: bool = False,
    rests: FetchBackoff | None = None,
) -> Ledger | None:
    """Return the chain that the node `who` on `ours` follows, given one peer's chain; None for its own.
    It has worked on its own chain if that is `binding`.

    Raises `ProtocolError` for an offence of the peer.
    """
    ours.binding = binding
    peer = ours.manifest.founder
    me = identity(who).peer
    comparison = ChainComparison(
        ours, [peer], FetchBackoff() if rests is None else rests, me=me, abandoned=abandoned
    )
    answering = theirs if callable(theirs) else answers(theirs)
    while not comparison.done:
        for question in comparison.requests(0.0):
            blame = comparison.on_answer(question.peer, answering(question), 0.0)
            if blame is not None:
                raise ProtocolError(blame.reason, blame.text)
    return comparison.better


def answers(ledger: Ledger) -> Answering:
    """Return the answers of an honest peer with this ledger."""

    def answering(question: SyncQuery) -> SyncAnswer:
        request = question.request(ledger.swarm)
        height, ids, rounds, _ = answer_to(request, ledger, lambda round_: [])
        return SyncAnswer(height, ids, at_hand=[ledger[round_] for round_ in rounds])

    return answering
