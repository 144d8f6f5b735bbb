"""Replica: how far this member's parameters follow the ledger, and what they need next.

The parameters follow the ledger record by record. They are reloaded from a certified snapshot when their
fingerprint turns out not to be the swarm's, when the chain changes, or when the ledger is so far ahead
that the updates in between are kept nowhere or are larger than a snapshot.
"""

from __future__ import annotations

from ...crypto.hashing import ContentId
from ...crypto.identity import PeerId
from ..chain.chain_index import StepSource
from ..chain.ledger import Ledger
from ..chain.replay_start import worth_replaying
from ..chain.snapshot_rounds import snapshot_round
from ..chain.step_inputs import needed_for
from ..wire.messages import SnapshotEntry
from .effects import Apply, Effect, Note, Resync
from .update_collection import HeldUpdates, RoundUpdates

# Maximum number of records that a newcomer asking for admission may lack (`join_request`).
_NEAR_ROUNDS = 4


class Replica:
    """State of one member's parameters, as far as the protocol needs it."""

    def __init__(self, me: PeerId, snapshot_interval: int) -> None:
        self.round = -1
        """The last round whose record the parameters contain; -1 for the initial parameters."""
        self.fingerprint: int | None = None
        """Fingerprint of the parameters after `round`; None until they are loaded."""
        self.snapshot: SnapshotEntry | None = None
        """Snapshot of the parameters after `round`, if one was due there."""
        self._me = me
        self._interval = snapshot_interval
        self._applying = False
        self._resyncing = False
        # Whether the parameters were loaded and have not contained everything decided since.
        self._loaded = False
        self._doubted = -1
        # The latest round before which the parameters did not match the swarm's, and the number of
        # mismatches since a later round matched.
        self._failed_at, self._failed = -1, 0
        # This member's updates for rounds that are not applied yet.
        self._own: dict[int, set[ContentId]] = {}

    def is_current(self, ledger: Ledger) -> bool:
        """Whether the parameters contain everything decided."""
        return self.fingerprint is not None and self.round == len(ledger) - 1

    def is_near(self, ledger: Ledger) -> bool:
        """Whether the parameters contain everything decided except the last few rounds."""
        return self.fingerprint is not None and len(ledger) - 1 - self.round <= _NEAR_ROUNDS

    def awaits(self, round: int) -> bool:
        """Whether the record of `round` is being applied, on the current chain."""
        return self._applying and round == self.round + 1

    def loaded(self, round: int, fingerprint: int, snapshot: SnapshotEntry | None) -> None:
        """Set the parameters to those after `round`, loaded from a snapshot."""
        self.round, self.fingerprint, self.snapshot = round, fingerprint, snapshot
        self._applying = self._resyncing = False
        self._loaded = True

    def applied(self, round: int, fingerprint: int, snapshot: SnapshotEntry | None) -> None:
        """Note that the awaited record of `round` is applied."""
        self._applying = False
        self.round, self.fingerprint, self.snapshot = round, fingerprint, snapshot
        self._own = {r: update for r, update in self._own.items() if r > round}

    def note_own(self, round: int, update: ContentId) -> None:
        """Note that this member made `update` for `round`, now or before a restart."""
        self._own.setdefault(round, set()).add(update)

    def rebase(self) -> list[Effect]:
        """Give up the parameters, which belong to another chain."""
        self._failed_at, self._failed = -1, 0
        return self._drop("the node switched to the heavier chain")

    def next(self, ledger: Ledger, held_updates: HeldUpdates) -> list[Effect]:
        """Return what brings the parameters closer to the ledger's end: fetch, apply, or reload."""
        if self.is_current(ledger):
            self._loaded = False
        if self._applying or self._resyncing or self.fingerprint is None or self.is_current(ledger):
            return []
        # Until the checkpoint's record is here, this may be a wrong chain.
        if not ledger.anchored:
            return []
        record = ledger[self.round + 1].record
        if record.fingerprint != self.fingerprint:
            self._failed_at = max(self._failed_at, record.round)
            self._failed += 1
            reason = f"the fingerprint before round {record.round} differs from the swarm's"
            return [
                Note("mismatch", record.round, self._me, "our parameters differ from the swarm's"),
                *self._drop(reason, self._failed),
            ]
        if record.round > self._failed_at:
            self._failed = 0
        newest = ledger.snapshot
        if newest is not None and newest.round - self.round > self._interval:
            # Other members keep two snapshots and the updates since the older one. They keep older
            # updates as well, as long as replaying them takes less than fetching a snapshot.
            replays = worth_replaying(ledger, self.round, newest.size, loaded=self._loaded)
            if not replays:
                return self._drop(
                    f"the swarm has reached round {len(ledger)}, and fetching the state of "
                    f"round {newest.round} takes less time than replaying the rounds"
                )
        needed = needed_for(ledger, record)
        effects = held_updates.fetch_all(record.round, [each.entry for each in needed])
        if ledger.index(StepSource).needs_all and record.round + 1 < len(ledger):
            # Fetch these while this round is applied. With committees, only a later record shows which
            # aggregates count.
            effects += held_updates.fetch_all(
                record.round + 1, ledger[record.round + 1].record.updates
            )
        if all(each.entry.update in held_updates.held for each in needed):
            self._applying = True
            # A counted update is in the parameters, even if the record names a copier as its author.
            own = self._own.get(record.round, ())
            counted = any(
                each.update_weight and (each.entry.peer == self._me or each.entry.update in own)
                for each in needed
            )
            closing = ledger.manifest.schedule.closing_round
            due = snapshot_round(record.round + 1, self._interval, closing) is not None
            effects.append(Apply(record, needed, own_counted=counted, snapshot_due=due))
        return effects

    def overtaken(self, round: int, ledger: Ledger) -> list[Effect]:
        """React to updates of `round` that no peer has any more: load a snapshot that contains them."""
        newest = ledger.snapshot
        awaited = round == self.round + 1 and not self._applying and self.fingerprint is not None
        if not awaited or newest is None or newest.round < round:
            return []
        return self._drop(
            f"no connected peer has the updates of round {round} any more; fetching the state "
            f"of round {newest.round} instead"
        )

    def doubt(self, round: int, collection: RoundUpdates) -> list[Effect]:
        """Reload the parameters if most others trained this round from different ones.

        A decided record would show it, too, but no record is decided if this member's vote is needed for
        it. This happens once per round: if the others are wrong, trying again gains nothing.
        """
        if self.fingerprint is None or self._doubted == round:
            return []
        if not collection.contradicts(self.fingerprint):
            return []
        self._doubted = round
        return [
            Note("mismatch", round, self._me, "most other members train from different parameters"),
            *self._drop("most other members have different parameters"),
        ]

    def _drop(self, reason: str, failed: int = 0) -> list[Effect]:
        """Give up the parameters and request others."""
        self.fingerprint, self._applying, self._resyncing = None, False, True
        return [Resync(reason, failed)]
