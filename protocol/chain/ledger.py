"""The ledger: the chain of decided records, each with the certificate that decided it.

Every entry can be checked from the manifest on: the founder is the membership of round 0, each record
carries the signatures of a quorum of its round's members and determines the members of the next round.
No entry has to be trusted because of its sender.
"""

from __future__ import annotations

import itertools

from ...crypto.envelope import verify_detached
from ...crypto.identity import PeerId
from ..sampling.sampler import order_of
from ..sampling.stream_cursor import StreamCursors
from ..wire.checkpoint import Checkpoint
from ..wire.encoding import encode
from ..wire.errors import ProtocolError
from ..wire.manifest import PROTOCOL_VERSION, Manifest
from ..wire.membership import LEAVE_WINDOW, Membership, Votes, founding
from ..wire.messages import (
    Ballot,
    Decided,
    DepartureEntry,
    Evidence,
    Leave,
    Record,
    RecordId,
    SnapshotEntry,
    WitnessEntry,
)
from .admissions import admission_problem
from .assignments import SampleAssignments
from .audits import check_audits, check_root, dismissed, new_audit_ledger
from .beacon import beacon_of, check_reveal
from .certificates import Verify, check_certificate
from .committees import new_committee_chain
from .entry_store import EntryStore, Spill
from .evidence import EVIDENCE_WINDOW, check_evidence
from .finality import Finality
from .leaders import LeaderHistory, Leaders
from .memberships import MembershipHistory
from .snapshot_rounds import snapshot_round
from .versions import VersionHistory


class Ledger:
    """A chain of decided records from round 0 on, checked entry by entry."""

    def __init__(
        self,
        manifest: Manifest,
        *,
        verify: Verify = verify_detached,
        spill: Spill | None = None,
        checkpoint: Checkpoint | None = None,
        max_version: int = PROTOCOL_VERSION,
    ) -> None:
        """`spill` stores the entries' bytes; without one all entries are kept in memory. A chain
        without the record of the `checkpoint` is refused. `max_version`: the highest protocol version
        that this program supports."""
        self.swarm = manifest.swarm
        self.manifest = manifest
        self.order = order_of(manifest)
        self.verify = verify
        self.checkpoint = checkpoint
        self.binding = False
        """Whether this node has worked on the chain, and so never reverts a final record of it. A
        newcomer may still learn that it followed the wrong chain."""
        self.held: Checkpoint | None = None
        """The last record that was final for this node on the chain that it left for this one. This
        chain has the record too, but need not show that it is final: a finality lease may have made it
        so, or records that are only on the other chain."""
        self._entries = EntryStore(spill)
        self._ids: list[RecordId] = []
        self._memberships = MembershipHistory(founding(manifest.founder))
        self._finality = Finality(manifest.fault_model, self._memberships[0])
        self.beacon = beacon_of(manifest, self._record)
        """The randomness beacon; None if this swarm draws nothing."""
        self.committee_chain = new_committee_chain(manifest, self._memberships, self.beacon)
        """The committees; None if every member sends complete updates."""
        self.assignments = SampleAssignments(
            manifest, self.order, self._memberships, self._record, self.committee_chain
        )
        """The sample assignments."""
        self.audits = new_audit_ledger(
            manifest, self.assignments, self._memberships, self._record, self.beacon
        )
        """The audit results; None if work is not audited."""
        self._leader_history = LeaderHistory(manifest.swarm)
        self.versions = VersionHistory(manifest, max_version)
        """Protocol version of the swarm by round."""
        # Certified snapshots with the round of the record that certifies each, and each peer with the
        # round that first admitted it: with these no query has to read all entries again.
        self._snapshots: list[tuple[int, SnapshotEntry]] = []
        self._everybody = {manifest.founder: 0}
        # Approximate bytes of the updates of all rounds before each round.
        self._bytes = [0]

    def __len__(self) -> int:
        """Return the number of decided rounds, which is also the number of the next round."""
        return len(self._entries)

    def __getitem__(self, round: int) -> Decided:
        return self._entries[round]

    def raw(self, round: int) -> bytes:
        """Return an entry as the bytes that are sent to peers."""
        return self._entries.raw(round)

    @property
    def head(self) -> RecordId:
        """The id of the last record: the parent of the next."""
        return self._ids[-1] if self._ids else RecordId(self.swarm)

    def membership(self, round: int) -> Membership:
        """Return the members of a round, at most the next one."""
        return self._memberships[round]

    def votes(self, round: int) -> Votes:
        """Return the votes of each member in a round, at most the next one."""
        members = self._memberships[round]
        if self.audits is None:
            return Votes.one_each(members)
        return Votes.of(self.audits.earned(round), members)

    def leaders(self, round: int) -> Leaders:
        """Return the leaders of a round's slots, at most the next round."""
        return self._leader_history.leaders(round, self._memberships[round], self.votes(round))

    def counts(self, record: Record) -> tuple[int, ...]:
        """Return the update weights of a record in the step, in the order of its updates. An update of
        weight 0 is not applied. Sign votes have weight 0, because with committees a step consists of
        their aggregates only. The record must have been checked, and is the next one at most."""
        source = self.assignments if self.committee_chain is None else self.committee_chain
        found = source.counts(record)
        if self.audits is not None:
            found = self.audits.counts(record, found)
        return tuple(found[entry.peer] for entry in record.updates)

    def cursors(self, round: int) -> StreamCursors:
        """Return the stream cursors of a round: 1 to the next round, with `overlap` to the one after
        it."""
        return self.assignments.cursors(round)

    def share(self, round: int, peer: PeerId) -> tuple[int, ...] | None:
        """Return the samples of the update that is due from `peer` in a round, for the same rounds as
        `cursors`; None if none is due."""
        return self.assignments.share(round, peer)

    def _record(self, round: int) -> Record:
        return self[round].record

    def update_bytes(self, first: int, end: int) -> int:
        """Return the approximate size in bytes of the updates that count in the rounds from `first` to
        `end` - 1.

        All updates of a swarm have about the same size. So each is counted with the lower median of the
        sizes in its round, which a few members cannot change by stating wrong sizes for their updates.
        """
        return self._bytes[end] - self._bytes[first]

    @property
    def final_round(self) -> int:
        """The last round whose record is final (`finality`); -1 if none is final."""
        return self._finality.round

    @property
    def justified_round(self) -> int:
        """The last round whose record is justified; at least `final_round`."""
        return self._finality.justified

    @property
    def finality_set(self) -> frozenset[PeerId]:
        """The members of whom a quorum makes the next record final."""
        return self._finality.members

    @property
    def finality_votes(self) -> Votes:
        """The votes in which that quorum is counted."""
        return self._finality.votes

    @property
    def finished(self) -> bool:
        """Whether the run is over: the last record is here, and none can follow it."""
        end = self.manifest.schedule.end_round
        return end is not None and len(self) > end

    @property
    def outcome_is_final(self) -> bool:
        """Whether the record that certifies the result of the run is final."""
        closing = self.manifest.schedule.closing_round
        return closing is not None and self.final_round >= closing

    @property
    def anchored(self) -> bool:
        """Whether the chain has reached the record of the checkpoint. A shorter chain may be forged."""
        return self.checkpoint is None or self.checkpoint.round < len(self)

    @property
    def floor(self) -> int:
        """The first round in which this node would follow another chain; nothing before it is
        compared."""
        bound = self.bound
        return 0 if bound is None else bound.round + 1

    @property
    def bound(self) -> Checkpoint | None:
        """The last record that is final for this node: the latest of the checkpoint, the record `held`
        and, if the node has worked on this chain, the chain's last final record. None if there is none
        of these, or before the chain reaches the checkpoint."""
        if not self.anchored:
            return None
        points = self.checkpoint, self.held, self.final if self.binding else None
        return max(filter(None, points), key=lambda point: point.round, default=None)

    @property
    def final(self) -> Checkpoint | None:
        """The last final record; None if none is final."""
        round_ = self.final_round
        return Checkpoint(round_, self._ids[round_]) if round_ >= 0 else None

    def move_finality_on(self, round: int, present: frozenset[PeerId]) -> bool:
        """Count only the members of the finality set that were `present` recently, so that records up to
        that of `round` may become final (`Finality.move_on`). Returns whether any did."""
        before = self.final_round
        if before < round < len(self):
            self._finality.move_on(round, present, self._memberships, self.votes)
        return self.final_round > before

    def believe_checkpoint(self) -> bool:
        """Treat the checkpoint's record as final although the records do not show that it is. Returns
        whether this changed anything: True if the chain has reached the checkpoint and its last final
        record was an earlier one."""
        known = self.checkpoint
        if known is None or not self.final_round < known.round < len(self):
            return False
        self._finality.believe(known.round, self._memberships, self.votes)
        return True

    def has_been_member(self, peer: PeerId) -> bool:
        """Whether `peer` is or was a member."""
        return peer in self._everybody

    def check_evidence(self, evidence: Evidence) -> None:
        """Raise `ProtocolError` unless the next record may expel a member by this evidence."""
        round_ = evidence.round
        if not len(self) - EVIDENCE_WINDOW <= round_ <= len(self):
            raise ProtocolError("evidence", "it is too old, or of a future round")
        if evidence.peer in self.membership(len(self)).expelled:
            raise ProtocolError("evidence", "the accused is expelled already")
        check_evidence(
            evidence,
            swarm=self.swarm,
            parent=self.parent(round_),
            accused_in=self.membership(round_),
            verify=self.verify,
        )

    def parent(self, round: int) -> RecordId:
        """Return the id of the record before `round`."""
        return self._ids[round - 1] if round else RecordId(self.swarm)

    @property
    def snapshot(self) -> SnapshotEntry | None:
        """The latest certified snapshot; None means the manifest's initial parameters."""
        return self._snapshots[-1][1] if self._snapshots else None

    def append(
        self, decided: Decided, *, encoded: bytes | None = None, verified: bool = False
    ) -> None:
        """Check the next entry and append it. Raises `ProtocolError`.

        `encoded`: the entry's bytes, if the caller has them. `verified`: this node has checked the entry
        before, and its storage proves that the bytes are the same; then only its place in the chain is
        checked.
        """
        record = decided.record
        round_ = len(self)
        membership, votes = self._memberships[-1], self.votes(round_)
        if self.versions.outdated:
            raise ProtocolError("version", f"round {round_} uses a newer protocol version")
        if record.round != round_ or record.parent != self.head:
            raise ProtocolError(
                "wrong_parent", f"record {record.round} does not follow {round_ - 1}"
            )
        if not verified:
            self._check(decided, membership, votes)
        at = self.checkpoint
        if at is not None and round_ == at.round and record.id != at.record:
            raise ProtocolError(
                "checkpoint",
                f"the record of round {round_} is not the one that the checkpoint names",
            )
        self._memberships.follow(record)
        self._leader_history.follow(record, membership, votes, self._memberships[-1])
        self.assignments.follow(record)
        self._entries.append(decided, encoded)
        self._ids.append(record.id)
        if self.beacon is not None:
            self.beacon.follow(record)
        if self.audits is not None:
            self.audits.follow(record)
        if self.committee_chain is not None:
            self.committee_chain.follow(record)
        self._finality.take(record, self._memberships, self.votes)
        for admission in record.admitted:
            self._everybody.setdefault(admission.peer, round_)
        self._bytes.append(self._bytes[-1] + self._estimate(record))
        self.versions.follow(record, self.votes(round_ + 1))
        if record.snapshot is not None:
            self._snapshots.append((round_, record.snapshot))

    def _check(self, decided: Decided, membership: Membership, votes: Votes) -> None:
        """Check the certificate and the content of the next entry, by `membership` with these votes.
        Raises `ProtocolError`."""
        record = decided.record
        check_certificate(
            decided.certificate,
            kind="finalize",
            swarm=self.swarm,
            round=record.round,
            parent=record.parent,
            block=record.id,
            membership=membership,
            votes=votes,
            model=self.manifest.fault_model,
            verify=self.verify,
        )
        check_record(record, self)
        if record.slot > decided.certificate.slot:
            raise ProtocolError("record", "decided in a slot before it was proposed")

    def _estimate(self, record: Record) -> int:
        """Return the approximate size of the updates that are needed to apply a record's step."""
        entries, committees = record.updates, self.committee_chain
        needed = {e.peer for e in entries} if committees is None else committees.counted(record)
        sizes = sorted(entry.size for entry in entries if entry.peer in needed)
        # An update larger than a snapshot is never worth fetching: the snapshot is the shorter way.
        most = 8 * self.manifest.elements
        return len(sizes) * min(sizes[(len(sizes) - 1) // 2], most) if sizes else 0

    def truncated(self, length: int) -> Ledger:
        """Return a ledger with only the first `length` entries (already checked, so not checked
        again)."""
        copy = Ledger(self.manifest, verify=self.verify, checkpoint=self.checkpoint)
        copy.binding = self.binding
        copy.held = self.held if self.held is not None and self.held.round < length else None
        copy._entries = self._entries.before(length)
        copy._ids = self._ids[:length]
        copy._memberships = self._memberships.before(length + 1)
        copy._leader_history = self._leader_history.before(length)
        if self.beacon is not None:
            copy.beacon = self.beacon.before(length, copy._record)
        if self.committee_chain is not None and copy.beacon is not None:
            parts = copy._memberships, copy.beacon, copy._record
            copy.committee_chain = self.committee_chain.before(length, *parts)
        copy.assignments = self.assignments.before(
            length, copy._memberships, copy._record, copy.committee_chain
        )
        copy._bytes = self._bytes[: length + 1]
        if self.audits is not None and copy.beacon is not None:
            parts = copy.assignments, copy._memberships, copy._record, copy.beacon
            copy.audits = self.audits.before(length, *parts)
        copy.versions = self.versions.before(length, self._record)
        copy._snapshots = [known for known in self._snapshots if known[0] < length]
        copy._finality = self._finality.before(length, self._record, copy._memberships, copy.votes)
        copy._everybody |= {
            peer: round_ for peer, round_ in self._everybody.items() if round_ < length
        }
        return copy

    def cut(self, length: int) -> None:
        """Keep only the first `length` entries."""
        vars(self).update(vars(self.truncated(length)))

    def followers(self, fork: int, end: int | None = None) -> dict[PeerId, int]:
        """Return the members that continued with this chain after it diverged from another one, from
        round `fork` on. Each comes with the last round since `fork` in which the chain admitted it, or
        -1 if it did not. Only records before round `end` are examined.

        A follower has signed one of the chain's certificates since the fork, or has an update in a
        record after the first one since: updates in the first were announced before the chains
        diverged, later ones name a record of this chain as their parent. Certificates count because of
        this case: of three members, one continues alone, and the others decide only one record. Without
        certificates these two would not count as followers, so they could continue neither with the
        third nor without it.
        """
        admitted: dict[PeerId, int] = {}
        followers: set[PeerId] = set()
        for decided in itertools.islice(self._entries.since(fork), end and end - fork):
            record = decided.record
            admitted |= dict.fromkeys((entry.peer for entry in record.admitted), record.round)
            followers |= {signed.peer for signed in decided.certificate.ballots}
            if record.round > fork:
                followers |= {entry.peer for entry in record.updates}
        return {peer: admitted.get(peer, -1) for peer in followers}

    def allows_leave(self, leave_round: int, peer: PeerId) -> bool:
        """Whether the next record may hold a leave that `peer` announced for round `leave_round`.

        The leave must be recent and not withdrawn: an update of `peer` in a later round withdraws it.
        """
        now = len(self)
        if not leave_is_current(leave_round, peer, now, self.membership(now)):
            return False
        since = (self[round_].record.updates for round_ in range(leave_round + 1, now))
        return all(entry.peer != peer for updates in since for entry in updates)

    def contributors(self, end: int) -> int:
        """Return how many distinct peers have an update in the records before round `end`."""
        records = (self[round_].record for round_ in range(end))
        return len({entry.peer for record in records for entry in record.updates})


def check_record(record: Record, ledger: Ledger) -> None:
    """Check everything about a record that follows from its signatures and the `ledger` before it.

    What depends on the checking member (its fingerprint, the updates that it holds, the members that it
    hears) is not checked here. Raises `ProtocolError` with the reason `record` or `audit`.
    """
    manifest, membership, verify = ledger.manifest, ledger.membership(len(ledger)), ledger.verify
    swarm = manifest.swarm

    def signed(kind: str, peer: PeerId, message: object, signature: bytes) -> bool:
        return verify(kind, swarm, peer, encode(message), signature)

    _check_sorted([entry.peer for entry in record.updates])
    _check_sorted([entry.peer for entry in record.admitted])
    _check_sorted([entry.peer for entry in record.departed])
    _check_sorted([evidence.peer for evidence in record.evidence])
    _check_sorted([witness.peer for witness in record.witnesses])
    # The members of one committee announce the same aggregate.
    alone = not manifest.aggregates_in(record.round)
    if alone and len({entry.update for entry in record.updates}) < len(record.updates):
        raise ProtocolError("record", "one update under two members")
    silent = {entry.peer for entry in record.departed if entry.reason == "silent"}
    if record.updates and not manifest.schedule.trains(record.round):
        raise ProtocolError(
            "record", f"round {record.round} has updates, but is not a training round"
        )
    if ledger.finished:
        raise ProtocolError("record", "a record after the end of the run")
    due = ledger.assignments.due(record.round) if record.updates else frozenset()
    for entry in record.updates:
        if entry.peer not in membership or entry.peer in silent:
            raise ProtocolError("record", "an update by a non-member")
        if entry.peer not in due:
            raise ProtocolError("record", "an update by a member without an assignment")
        if not signed("announcement", entry.peer, record.announcement(entry), entry.signature):
            raise ProtocolError("record", "an update that its author did not announce")
    for departure in record.departed:
        _check_departure(departure, record, ledger, signed)
    for evidence in record.evidence:
        _check_expulsion(evidence, record, ledger)
    for witness in record.witnesses:
        _check_witness(witness, record, ledger, signed)
    check_reveal(record, ledger.beacon, ledger.leaders(record.round)[record.slot])
    check_audits(record, ledger.audits, ledger.parent, signed)
    check_root(record, ledger.audits)
    _check_admissions(record, ledger, membership)
    _check_snapshot(record, manifest)


def _check_admissions(record: Record, ledger: Ledger, membership: Membership) -> None:
    manifest, verify = ledger.manifest, ledger.verify
    expelled = sum(evidence.peer in membership for evidence in record.evidence)
    remaining = len(membership) - len(record.departed) - expelled
    if record.admitted and remaining + len(record.admitted) > manifest.admission.max_members:
        raise ProtocolError("record", "more members than the manifest allows")
    if record.round == 0 and remaining + len(record.admitted) < manifest.rounds.start_members:
        raise ProtocolError("record", "fewer members than training needs to begin")
    if remaining + len(record.admitted) < 1:
        raise ProtocolError("record", "a record that leaves no members")
    for admission in record.admitted:
        problem = admission_problem(
            *(admission.peer, admission.request, record.round, manifest),
            *(membership, verify, ledger.audits),
        )
        body = encode(admission.request)
        swarm, peer, signature = manifest.swarm, admission.peer, admission.signature
        if problem is None and not verify("join", swarm, peer, body, signature):
            problem = "the request's signature is not valid"
        if problem is not None:
            raise ProtocolError("record", f"an admission that is not allowed: {problem}")


def _check_departure(departure: DepartureEntry, record: Record, ledger: Ledger, signed) -> None:
    membership = ledger.membership(record.round)
    if departure.peer not in membership:
        raise ProtocolError("record", "a departure of a non-member")
    if departure.reason != "left":
        if departure.signature or departure.round:
            raise ProtocolError("record", "a departure for silence with a signature or a round")
        if departure.reason == "dismissed" and not dismissed(departure.peer, ledger.audits):
            raise ProtocolError("record", "a member is dismissed whose work has not failed audits")
        return
    if not ledger.allows_leave(departure.round, departure.peer):
        raise ProtocolError("record", "a leave that is too old, or of a future round")
    if not signed("leave", departure.peer, Leave(departure.round), departure.signature):
        raise ProtocolError("record", "a leave that its member did not sign")


def _check_expulsion(evidence: Evidence, record: Record, ledger: Ledger) -> None:
    named = [entry.peer for entry in (*record.departed, *record.admitted)]
    if evidence.peer in named:
        raise ProtocolError("record", "an expelled member is listed as departed or admitted too")
    try:
        ledger.check_evidence(evidence)
    except ProtocolError as error:
        raise ProtocolError("record", f"an expulsion that is not allowed: {error}") from None


def _check_witness(witness: WitnessEntry, record: Record, ledger: Ledger, signed) -> None:
    if record.round == 0 or witness.peer not in ledger.membership(record.round - 1):
        raise ProtocolError("record", "a witness that was not a member")
    if witness.peer in {entry.peer for entry in record.updates}:
        raise ProtocolError("record", "a witness whose update is in the record")
    parent = ledger.parent(record.round - 1)
    ballot = Ballot(record.round - 1, parent, witness.slot, record.parent, witness.silent)
    if not signed("finalize", witness.peer, ballot, witness.signature):
        raise ProtocolError("record", "a witness that did not sign")


def leave_is_current(leave_round: int, peer: PeerId, round: int, membership: Membership) -> bool:
    """Whether a leave that `peer` announced for round `leave_round` may be put into the record of
    `round`."""
    since = membership.since.get(peer)
    return (
        since is not None
        and since < leave_round
        and round - LEAVE_WINDOW <= leave_round <= round + 1
    )


def _check_snapshot(record: Record, manifest: Manifest) -> None:
    interval, closing = manifest.rounds.snapshot_interval, manifest.schedule.closing_round
    due = snapshot_round(record.round, interval, closing)
    carried = record.snapshot.round if record.snapshot is not None else None
    if due != carried:
        found = "no snapshot" if carried is None else f"a snapshot of round {carried}"
        wanted = "none" if due is None else f"that of round {due}"
        raise ProtocolError("record", f"it certifies {found}, but {wanted} is due")
    if record.snapshot is not None and record.snapshot.size != 4 * manifest.elements:
        raise ProtocolError("record", "it certifies a snapshot of the wrong size")


def _check_sorted(peers: list[PeerId]) -> None:
    if peers != sorted(set(peers)):
        raise ProtocolError("record", "entries are not sorted by peer and distinct")
