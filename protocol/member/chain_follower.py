"""Chain follower: moves a member from round to round, by its own decision, by the others', or to another
chain."""

from __future__ import annotations

from ..chain.ledger import Ledger
from ..wire.errors import ProtocolError
from ..wire.messages import Decided, Record, UpdateEntry
from .effects import CompareChains, Effect, Note, StoreEntry
from .events import notes_of, notes_of_change
from .message_intake import MessageIntake
from .parts import MemberParts
from .view import MemberView


class ChainFollower:
    """One member's way along the chain."""

    def __init__(self, parts: MemberParts, view: MemberView, intake: MessageIntake) -> None:
        self._parts = parts
        self._view = view
        self._intake = intake

    def decide(self, now: float) -> list[Effect]:
        """Move to the next round if this one is decided and its record known, or request the updates
        for which alone its decision does not bind this member."""
        decisions = self._decisions()
        for decided in decisions:
            if self._binds(decided, now):
                learned = decided is self._parts.round.kept
                if self._view.at_tip and not learned:
                    self._parts.round.observe(
                        decided.certificate, self._parts.training.capacity, now
                    )
                return self._adopt(decided, now, learned=learned)
        return [
            effect
            for decided in decisions
            if self._binds(decided, now, held=True)
            for effect in self._fetch(decided)
        ]

    def waits(self, now: float) -> bool:
        """Whether this member would follow a decision if it held the updates: then it casts no ballot,
        because the signers may be cut off before it has the updates. Ask after `decide`, which follows
        any decision that binds."""
        return any(self._binds(decided, now, held=True) for decided in self._decisions())

    def misfit(self, record: Record) -> list[Effect] | None:
        """Return what to do about a received record that does not come next, perhaps nothing; None if it
        comes next."""
        ledger, round_ = self._parts.ledger, self._view.round
        if record.round < round_:
            known = ledger[record.round].record.id == record.id
            return [] if known else [CompareChains(record.round)]
        if record.round > round_:
            self._parts.lag_detector.note_behind()
            if record.snapshot is not None and record.snapshot.round >= round_:
                self._parts.round.snapshot_ahead = True
            return []
        if record.parent != ledger.head and round_ > 0:
            return [CompareChains(round_ - 1)]
        return None

    def learn(self, decided: Decided, now: float) -> list[Effect]:
        """Append a received entry for the round at the tip, or request the updates for which alone it
        does not bind this member, once. Raises `ProtocolError` if it is invalid, or does not bind."""
        if self._binds(decided, now):
            return self._adopt(decided, now, learned=True)
        round_, waits = self._parts.round, self._binds(decided, now, held=True)
        before = round_.kept
        round_.keep(decided, lacks=waits, now=now)
        if waits and round_.kept is not before:
            return self._fetch(decided)
        raise ProtocolError(
            "silences_us", "a decision that counts members as silent which are heard here"
        )

    def rebase(self, ledger: Ledger, now: float) -> list[Effect]:
        """Switch to a heavier chain: drop what was applied since the fork and rejoin."""
        parts = self._parts
        ledger.held, parts.context.ledger = parts.ledger.bound, ledger
        parts.lease.start_over()
        for feature in parts.features:
            feature.start_over()
        parts.solo_guard.begin(now)
        parts.enter_round(now)
        self._intake.start_over(now)
        return [Note("forked", self._view.round), *parts.replica.rebase()]

    def _decisions(self) -> list[Decided]:
        """Return the decisions of the round at the tip that this member may follow: that of the ballots
        received, if its record is known, and the one that was kept."""
        round_, found = self._parts.round, list[Decided]()
        certificate = round_.consensus.decision
        if certificate is not None:
            record = round_.consensus.records.get(certificate.block)
            own = None if record is None else Decided(record, certificate)
            # A quorum with honest members never signs an invalid record; other quorums are not followed.
            if own is not None and round_.allows(own):
                found.append(own)
            elif not round_.consensus.doubts(certificate):
                return []
        return found if round_.kept is None else [*found, round_.kept]

    def _binds(self, decided: Decided, now: float, *, held: bool = False) -> bool:
        """Whether this member follows a decision; `held`: whether it would if it held the updates."""
        parts = self._parts
        lacks = not held and bool(self._missing(decided.record))
        return parts.round.binds(
            decided.certificate, leaving=parts.leave_requested, lacks=lacks, now=now
        )

    def _missing(self, record: Record) -> list[UpdateEntry]:
        """Return the updates that this member would need next to apply the record, and does not hold."""
        parts, view = self._parts, self._view
        if not (view.is_member and view.at_tip) or parts.round.snapshot_ahead:
            return []
        return parts.round.missing(record, parts.held_updates.held)

    def _fetch(self, decided: Decided) -> list[Effect]:
        missing = self._missing(decided.record)
        return self._parts.held_updates.fetch_all(self._view.round, missing)

    def _adopt(self, decided: Decided, now: float, *, learned: bool = False) -> list[Effect]:
        """Append an entry and enter the next round. `learned`: another peer sent the entry."""
        parts = self._parts
        record, ledger, over = decided.record, parts.ledger, parts.round
        change = ledger.versions.change
        before = [(feature, feature.before_record(ledger)) for feature in parts.features]
        ledger.append(decided)
        undoubted = over.consensus.believes(decided.certificate)
        if undoubted:
            parts.context.last_undoubted = now
        listens = over.listens(now)
        parts.solo_guard.decided(beyond_doubt=undoubted and not learned, listens=listens, now=now)
        effects: list[Effect] = [StoreEntry(decided), *notes_of(record, parts.me)]
        effects += notes_of_change(change, ledger.versions.change)
        for feature, known in before:
            effects += feature.notes(known, record.round, ledger)
        for admission in record.admitted:
            parts.joins.drop(admission.peer)
        parts.last_ready = over.ready_since
        parts.held_updates.decided(ledger, parts.replica.round)
        parts.enter_round(now)
        if self._view.is_member:
            for feature in parts.features:
                effects += feature.decided(ledger)
        parts.last_decision = now
        return effects + self._intake.begin_round(now)
