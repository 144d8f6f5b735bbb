"""Chain follower: moves a member from round to round, by its own decision, by the others', or to another
chain."""

from __future__ import annotations

from ..chain.ledger import Ledger
from ..wire.errors import ProtocolError
from ..wire.messages import Certificate, Decided, Record, UpdateEntry
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
        """Move to the next round if this one is decided and its record known."""
        parts = self._parts
        certificate = parts.round.consensus.decision
        if certificate is None:
            return self._follow_kept(now)
        record = parts.round.consensus.records.get(certificate.block)
        # A quorum with honest members never signs an invalid record; other quorums are not followed.
        if record is not None and not parts.round.is_valid(record):
            record = None
        missing = [] if record is None else self._missing(record)
        if not self._binds(certificate, missing, now):
            return self._follow_kept(now) or self._fetch(missing)
        if record is None:
            return []
        if self._view.at_tip:
            parts.round.observe(certificate, parts.training.capacity, now)
        return self._adopt(Decided(record, certificate), now)

    def misfit(self, record: Record) -> list[Effect] | None:
        """Return what to do about a received record that does not come next, perhaps nothing; None if it
        comes next."""
        ledger, round_ = self._parts.ledger, self._view.round
        if record.round < round_:
            known = ledger[record.round].record.id == record.id
            return [] if known else [CompareChains(record.round)]
        if record.round > round_:
            self._parts.lag_detector.note_behind()
            return []
        if record.parent != ledger.head and round_ > 0:
            return [CompareChains(round_ - 1)]
        return None

    def learn(self, decided: Decided, now: float) -> list[Effect]:
        """Append a received entry for the round at the tip, or request the updates without which it does
        not bind this member. Raises `ProtocolError` if it is invalid, or does not bind this member."""
        parts = self._parts
        missing = self._missing(decided.record)
        if not self._binds(decided.certificate, missing, now):
            parts.round.keep(decided, lacks=bool(missing), now=now)
            if missing and parts.round.kept == decided:
                return self._fetch(missing)
            raise ProtocolError(
                "silences_us", "a decision that counts members as silent which are heard here"
            )
        return self._adopt(decided, now, learned=True)

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

    def _follow_kept(self, now: float) -> list[Effect]:
        """Follow the others' decision that was kept, once it binds."""
        kept = self._parts.round.kept
        if kept is None or not self._binds(kept.certificate, self._missing(kept.record), now):
            return []
        return self._adopt(kept, now, learned=True)

    def _binds(self, certificate: Certificate, missing: list[UpdateEntry], now: float) -> bool:
        leaving = self._parts.leave_requested
        return self._parts.round.binds(certificate, leaving=leaving, lacks=bool(missing), now=now)

    def _missing(self, record: Record) -> list[UpdateEntry]:
        """Return the updates that this member would need next to apply the record, and does not hold."""
        if not (self._view.is_member and self._view.at_tip):
            return []
        return self._parts.round.missing(record, self._parts.held_updates.held)

    def _fetch(self, updates: list[UpdateEntry]) -> list[Effect]:
        return self._parts.held_updates.fetch_all(self._view.round, updates)

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
