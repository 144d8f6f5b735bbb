"""The ledger: the chain of decided records, each with the certificate that decided it.

Every entry can be checked from the manifest on: the founder is the membership of round 0, each record
carries the signatures of a quorum of its round's members and determines the members of the next round.
No entry has to be trusted because of its sender.

The entries and all that follows from them are in an `IndexedChain`, with its indexes (`indexes`). The
ledger checks new entries, and knows which records this node never reverts.
"""

from __future__ import annotations

import itertools
from typing import Any

from ...crypto.envelope import Verify, verify_detached
from ...crypto.identity import PeerId
from ..wire.checkpoint import Checkpoint
from ..wire.errors import ProtocolError
from ..wire.manifest import PROTOCOL_VERSION, Manifest
from ..wire.membership import Membership, Votes
from ..wire.messages import Decided, Record, RecordId, SnapshotEntry
from .assignments import SampleAssignments
from .certificates import check_certificate
from .certified_snapshots import CertifiedSnapshots
from .chain_index import T
from .entry_store import EntryStore, Spill
from .finality import Finality
from .indexed_chain import IndexedChain
from .indexes import new_indexes
from .leaders import LeaderHistory, Leaders
from .memberships import PastMembers
from .record_checks import check_record
from .record_ids import RecordIds
from .update_bytes import UpdateBytes
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
        chain: IndexedChain | None = None,
    ) -> None:
        """`spill` stores the entries' bytes; without one all entries are kept in memory. A chain
        without the record of the `checkpoint` is refused. `max_version`: the highest protocol version
        that this program supports. `chain`: the entries to begin with, which have been checked and are
        stored already; by default none."""
        self.swarm = manifest.swarm
        self.manifest = manifest
        self.verify = verify
        self.checkpoint = checkpoint
        self.binding = False
        """Whether this node has worked on the chain, and so never reverts a final record of it. A
        newcomer may still learn that it followed the wrong chain."""
        self.held: Checkpoint | None = None
        """The last record that was final for this node on the chain that it left for this one. This
        chain has the record too, but need not show that it is final: a finality lease may have made it
        so, or records that are only on the other chain."""
        self._chain = (
            IndexedChain(manifest, EntryStore(spill), lambda chain: new_indexes(chain, max_version))
            if chain is None
            else chain
        )

    def __len__(self) -> int:
        """Return the number of decided rounds, which is also the number of the next round."""
        # Asked dozens of times for each message, so without the calls of `len` in between.
        return self._chain.entries.length

    def __getitem__(self, round: int) -> Decided:
        return self._chain.entries[round]

    def raw(self, round: int) -> bytes:
        """Return an entry as the bytes that are sent to peers."""
        return self._chain.entries.raw(round)

    def record(self, round: int) -> Record:
        """Return the record of a round."""
        return self._chain.record(round)

    def parent(self, round: int) -> RecordId:
        """Return the id of the record before `round`."""
        return self._chain.parent(round)

    @property
    def head(self) -> RecordId:
        """The id of the last record: the parent of the next."""
        return self.parent(len(self))

    def index(self, kind: type[T]) -> T:
        """Return the chain's index of this class (`indexes`). Raises `LookupError` if it has none."""
        return self._chain.index(kind)

    def find(self, kind: type[T]) -> T | None:
        """Return the chain's index of this class; None if the swarm lacks this feature."""
        return self._chain.find(kind)

    def membership(self, round: int) -> Membership:
        """Return the members of a round, at most the next one."""
        return self._chain.membership(round)

    def votes(self, round: int) -> Votes:
        """Return the votes of each member in a round, at most the next one."""
        return self._chain.votes(round)

    def leaders(self, round: int) -> Leaders:
        """Return the leaders of a round's slots, at most the next round."""
        return self.index(LeaderHistory).leaders(round)

    def update_weights(self, record: Record) -> tuple[int, ...]:
        """Return the update weights of a record in its step, in the order of its updates. An update of
        weight 0 is not applied. The record must have been checked, and is the next one at most."""
        return self._chain.update_weights(record)

    @property
    def assignments(self) -> SampleAssignments:
        """The sample assignments."""
        return self.index(SampleAssignments)

    @property
    def versions(self) -> VersionHistory:
        """Protocol version of the swarm by round."""
        return self.index(VersionHistory)

    @property
    def snapshot(self) -> SnapshotEntry | None:
        """The latest certified snapshot; None means the manifest's initial parameters."""
        return self.index(CertifiedSnapshots).latest

    def update_bytes(self, first: int, end: int) -> int:
        """Return the approximate size in bytes of the updates that are needed for the rounds from
        `first` to `end` - 1."""
        return self.index(UpdateBytes).between(first, end)

    def has_been_member(self, peer: PeerId) -> bool:
        """Whether `peer` is or was a member."""
        return peer in self.index(PastMembers)

    @property
    def final_round(self) -> int:
        """The last round whose record is final (`finality`); -1 if none is final."""
        return self.index(Finality).round

    @property
    def justified_round(self) -> int:
        """The last round whose record is justified; at least `final_round`."""
        return self.index(Finality).justified

    @property
    def finality_set(self) -> frozenset[PeerId]:
        """The members of whom a quorum makes the next record final."""
        return self.index(Finality).members

    @property
    def finality_votes(self) -> Votes:
        """The votes in which that quorum is counted."""
        return self.index(Finality).votes

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
        return Checkpoint(round_, self.index(RecordIds)[round_]) if round_ >= 0 else None

    def move_finality_on(self, round: int, present: frozenset[PeerId]) -> bool:
        """Count only the members of the finality set that were `present` recently, so that records up to
        that of `round` may become final (`Finality.move_on`). Returns whether any did."""
        before = self.final_round
        if before < round < len(self):
            self.index(Finality).move_on(round, present)
        return self.final_round > before

    def believe_checkpoint(self) -> bool:
        """Treat the checkpoint's record as final although the records do not show that it is. Returns
        whether this changed anything: True if the chain has reached the checkpoint and its last final
        record was an earlier one."""
        known = self.checkpoint
        if known is None or not self.final_round < known.round < len(self):
            return False
        self.index(Finality).believe(known.round)
        return True

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
        if self.versions.outdated:
            raise ProtocolError("version", f"round {round_} uses a newer protocol version")
        if record.round != round_ or record.parent != self.head:
            raise ProtocolError(
                "wrong_parent", f"record {record.round} does not follow {round_ - 1}"
            )
        if not verified:
            self._check(decided)
        if self.checkpoint is not None and round_ == self.checkpoint.round:
            self.check_anchor(record.id)
        self._chain.append(decided, encoded)

    def check_anchor(self, record: RecordId) -> None:
        """Check the record of the checkpoint's round. Raises `ProtocolError` (`checkpoint`)."""
        at = self.checkpoint
        if at is not None and record != at.record:
            raise ProtocolError(
                "checkpoint",
                f"the record of round {at.round} is not the one that the checkpoint names",
            )

    def index_states(self) -> list[Any]:
        """Return the states of the chain's indexes as plain data, in their order."""
        return [index.state() for index in self._chain.indexes]

    def _check(self, decided: Decided) -> None:
        """Check the certificate and the content of the next entry. Raises `ProtocolError`."""
        record = decided.record
        check_certificate(
            decided.certificate,
            kind="finalize",
            swarm=self.swarm,
            round=record.round,
            parent=record.parent,
            block=record.id,
            membership=self.membership(len(self)),
            votes=self.votes(len(self)),
            model=self.manifest.fault_model,
            verify=self.verify,
        )
        check_record(record, self._chain, self.verify)
        if record.slot > decided.certificate.slot:
            raise ProtocolError("record", "decided in a slot before it was proposed")

    def truncated(self, length: int) -> Ledger:
        """Return a ledger with only the first `length` entries (already checked, so not checked
        again)."""
        copy = Ledger(
            self.manifest,
            verify=self.verify,
            checkpoint=self.checkpoint,
            chain=self._chain.before(length),
        )
        copy.binding = self.binding
        copy.held = self._held_before(length)
        return copy

    def cut(self, length: int) -> None:
        """Keep only the first `length` entries."""
        self._chain = self._chain.before(length)
        self.held = self._held_before(length)

    def _held_before(self, length: int) -> Checkpoint | None:
        return self.held if self.held is not None and self.held.round < length else None

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
        for decided in itertools.islice(self._chain.entries.since(fork), end and end - fork):
            record = decided.record
            admitted |= dict.fromkeys((entry.peer for entry in record.admitted), record.round)
            followers |= {signed.peer for signed in decided.certificate.ballots}
            if record.round > fork:
                followers |= {entry.peer for entry in record.updates}
        return {peer: admitted.get(peer, -1) for peer in followers}

    def contributors(self, end: int) -> int:
        """Return how many distinct peers have an update in the records before round `end`."""
        records = map(self.record, range(end))
        return len({entry.peer for record in records for entry in record.updates})
