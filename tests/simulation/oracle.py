"""An opinion of its own on chains: what a certificate proves, worked out without the protocol's code.

Were certificates judged by the functions under test, a mistake in them would hide itself. Only formats,
signatures and the account of who is a member are shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.sampling.deal import Deal
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.manifest import Manifest
from distro_node.protocol.wire.membership import Membership
from distro_node.protocol.wire.messages import Certificate, Decided, RecordId

from .keys import Keys

_sober: Callable[[], AbstractContextManager[None]] = nullcontext


@contextmanager
def judging_under(sober: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Let the oracle do its work within `sober()`: that is how mutations are kept out of its head."""
    global _sober
    _sober = sober
    try:
        yield
    finally:
        _sober = nullcontext


@dataclass(frozen=True)
class Judgement:
    """What a certificate shows."""

    problem: str
    """Why it proves nothing; empty if it does."""
    discounted: frozenset[PeerId]
    """Members that all signers call silent."""
    needed: int
    """The quorum of the others."""


def least_quorum(model: str, members: int) -> int:
    """The least number that is more than two thirds, or more than half."""
    share = (2, 3) if model == "byzantine" else (1, 2)
    return next(n for n in range(members + 2) if n * share[1] > members * share[0])


def judge(
    certificate: Certificate,
    record: RecordId,
    membership: Membership,
    manifest: Manifest,
    keys: Keys,
) -> Judgement:
    """Judge a certificate of finalizes for `record`, by the members of its round."""
    members = sorted(membership.since)
    signers = [ballot.peer for ballot in certificate.ballots]
    common = set(members)
    problem = ""
    for ballot in certificate.ballots:
        bits = int.from_bytes(ballot.silent, "little")
        common &= {peer for place, peer in enumerate(members) if bits >> place & 1}
        body = encode(certificate.ballot(ballot))
        if not keys.verify("finalize", manifest.swarm, ballot.peer, body, ballot.signature):
            problem = "a signature does not hold"
    discounted = frozenset(common - set(signers))
    needed = least_quorum(manifest.fault_model, len(members) - len(discounted))
    if certificate.kind != "finalize" or certificate.block != record:
        problem = "it is about something else"
    elif not set(signers) <= set(members) or len(set(signers)) != len(signers):
        problem = "its signers are not distinct members"
    elif len(signers) < needed:
        problem = f"{len(signers)} signers where {needed} are needed"
    return Judgement(problem, discounted, needed)


class Chains:
    """Every chain that anybody followed, as a tree of records, each checked once by a fresh ledger."""

    def __init__(self, manifest: Manifest, keys: Keys) -> None:
        self._manifest = manifest
        self._keys = keys
        fresh = Ledger(manifest, verify=keys.verify)
        # A ledger that contains the record, and how long it was when the record was its last.
        self._home: dict[RecordId, tuple[Ledger, int]] = {fresh.head: (fresh, 0)}
        self._judged: dict[tuple[RecordId, Certificate], Judgement] = {}
        self._leaders: dict[RecordId, list[PeerId]] = {}
        self.records: dict[RecordId, Decided] = {}
        self.children: dict[RecordId, dict[RecordId, list[Judgement]]] = {}
        """By parent, the records that were decided after it, with their certificates."""

    def membership(self, parent: RecordId) -> Membership | None:
        """The members of the round after a record; None if it was never decided."""
        if parent not in self._home:
            return None
        ledger, length = self._home[parent]
        return ledger.membership(length)

    def dealt(self, parent: RecordId) -> tuple[Deal, Membership]:
        """What the round after a record that was decided deals out, and to whom."""
        ledger, length = self._home[parent]
        return ledger.deal(length), ledger.dealt_to(length)

    def last_deal(self, parent: RecordId) -> Deal:
        """The last one that is settled by a record that was decided: with `overlap` a round ahead."""
        ledger, length = self._home[parent]
        return ledger.deal(max(1, length) + ledger.manifest.rounds.overlap)

    def leader(self, parent: RecordId, slot: int) -> PeerId | None:
        """Who leads a slot of the round after a record."""
        if parent not in self._leaders:
            membership = self.membership(parent)
            if membership is None:
                return None
            self._leaders[parent] = sorted(
                membership.since, key=lambda peer: content_id(parent + peer)
            )
        leaders = self._leaders[parent]
        return leaders[(slot - 1) % len(leaders)]

    def add(self, decided: Decided) -> Judgement:
        """Take in an entry of somebody's chain, whose parent must be known.

        Raises `ProtocolError` if a ledger that knows the chain alone refuses it.
        """
        record = decided.record
        key = (record.id, decided.certificate)
        if key not in self._judged:
            with _sober():
                self._judged[key] = self._judge(decided)
        return self._judged[key]

    def claim(self, ours: Ledger, fork: int) -> tuple[int, int, bytes]:
        """What speaks for a chain since a fork: who went on with it, how much, and the lot."""
        in_force = self.membership(ours.parent(fork)) or ()
        followers: set[PeerId] = set()
        updates = 0
        for number in range(fork, len(ours)):
            signers = {ballot.peer for ballot in ours[number].certificate.ballots}
            followers |= {peer for peer in signers if peer in in_force}
            for entry in ours[number].record.updates:
                if entry.peer in in_force:
                    updates += 1
                    followers |= {entry.peer} if number > fork else set()
        lot = bytes(255 - byte for byte in ours[fork].record.id) if fork < len(ours) else b""
        return len(followers), updates, lot

    def _judge(self, decided: Decided) -> Judgement:
        record = decided.record
        membership = self.membership(record.parent)
        if membership is None:
            return Judgement("its parent was never decided", frozenset(), 0)
        judgement = judge(decided.certificate, record.id, membership, self._manifest, self._keys)
        if not judgement.problem:
            if record.id not in self._home:
                ledger, length = self._home[record.parent]
                if len(ledger) > length:
                    ledger = ledger.truncated(length)
                ledger.append(decided)
                self._home[record.id] = (ledger, len(ledger))
                self.records[record.id] = decided
            siblings = self.children.setdefault(record.parent, {})
            siblings.setdefault(record.id, []).append(judgement)
        return judgement
