"""A member of a swarm: all rules of the protocol as one state machine.

Its inputs report received messages, updates held, work done and the time (`inputs`); its outputs are
effects (`effects`); the rest of its interface is read-only. It follows one loop: apply the decided
records that are not applied yet; at the tip, train, collect updates, and agree on the record. A
newcomer, a restarted node and one that fell behind are the same case: their ledger has records that they
have not applied.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from ...crypto.envelope import Envelope
from ..chain.audits import AuditLedger
from ..chain.beacon import draws_lots
from ..chain.ledger import Ledger
from ..wire.encoding import encode
from ..wire.errors import ProtocolError
from ..wire.messages import (
    Announcement,
    AuditMessage,
    Ballot,
    Decided,
    Evidence,
    Heartbeat,
    JoinRequest,
    Leave,
    Message,
    Proposal,
    ReauditMessage,
    decode_message,
    parent_of,
    round_of,
)
from .effects import CompareChains, Effect, LogMessage, Note, Publish, StoreEntry, StoreFinality
from .events import notes_of, notes_of_audits, notes_of_change, snapshot_of
from .inputs import (
    Applied,
    AuditScored,
    Connected,
    Disconnected,
    EntryReceived,
    Input,
    LeaveRequested,
    Loaded,
    MessageReceived,
    ReauditDone,
    Rebased,
    Recalled,
    Tick,
    Trained,
    UpdateBad,
    UpdateHeld,
    UpdatesGone,
)
from .local_updates import announcement_of
from .parts import MemberParts
from .round_io import RoundInput
from .states import move

# Kinds that do not bind their sender, and so need not survive a restart.
_FLEETING = ("heartbeat", "join", "evidence", "audit", "reaudit")
# Part of a round's collect deadline for which aggregators wait for missing sign votes.
_SIGN_VOTES_SHARE = 0.5


class Member(MemberParts):
    """One node's part in a swarm. All times are seconds of any steady clock."""

    # What happens

    def restore(self, envelopes: Iterable[Envelope], now: float) -> None:
        """Take in again what this member signed before a restart, so that it does not contradict itself.

        `envelopes` also contain the others' proposals that it voted for, and the others' votes on which
        it finalized: it may hold the last copy of them. Messages of another chain are skipped; messages
        of future rounds (if the ledger's end was lost) wait for their round. A leave is ignored, because
        the member is back: if it were still passed on, members that left together would not count each
        other once they are back. Raises `ProtocolError` for an envelope that is not a message.
        """
        for envelope in envelopes:
            message = decode_message(envelope)
            own = envelope.sender == self._me and not isinstance(message, Leave)
            with contextlib.suppress(ProtocolError):
                if own or isinstance(message, Proposal):
                    self._take(envelope, message, now)
                elif isinstance(message, Ballot) and message.round >= self.round:
                    # Not `_take`: an old ballot does not show that its sender is alive.
                    if message.round == self.round:
                        self._handle(envelope, message, now)
                    self._message_filter.keep(envelope, message.round, member=True)

    def screen(self, envelope: Envelope, now: float) -> Message:
        """Check a message as far as possible before it is forwarded. Raises `ProtocolError`."""
        if self.is_outdated:
            raise ProtocolError(
                "version", "the swarm uses a newer protocol version than this node supports"
            )
        message = self._message_filter.screen(envelope, self._ledger, now)
        if isinstance(message, Proposal):
            record = message.record
            if (record.round, record.parent) == (self.round, self._ledger.head):
                # A proposal is long: only the leader's is worth passing on.
                self._current.consensus.check_proposal(envelope.sender, message.slot, record)
        return message

    def handle(self, what: Input, now: float) -> list[Effect]:
        """Process an input. Returns the effects to carry out, in this order.

        Raises `ProtocolError` for an invalid message or ledger entry.
        """
        # An outdated member ignores all inputs: the others' messages may have meanings unknown to it.
        effects = [] if self.is_outdated else self._take_in(what, now)
        self._state = move(self._state, self._conditions())
        bound = self._ledger.bound
        if self._ledger.binding and bound is not None and bound != self._kept_final:
            self._kept_final = bound
            effects.append(StoreFinality(bound))
        return effects

    # Inputs, one by one

    def _take_in(self, what: Input, now: float) -> list[Effect]:
        match what:
            case MessageReceived(envelope):
                return self._on_message(envelope, now)
            case Tick():
                effects = self._tick(now)
            case EntryReceived(decided):
                return self._on_entry(decided, now)
            case UpdateHeld(update):
                self._held_updates.arrived(update, self._ledger, self.applied_round)
                self._current.collection.held(update, now)
                effects = []
            case UpdateBad(update):
                self._current.collection.mark_invalid(update)
                effects = []
            case UpdatesGone(round_):
                return self._replica.overtaken(round_, self._ledger)
            case Trained():
                return self._trained(what, now)
            case AuditScored():
                effects = self._send_all(self._auditor.scored(what, self._ledger), now)
            case ReauditDone():
                self._auditor.note_reaudit(what, self._ledger)
                effects = []
            case Applied():
                return self._applied(what, now)
            case Loaded():
                effects = self._loaded(what, now)
            case Connected(peer):
                self._liveness.note_connected(peer)
                effects = []
            case Disconnected(peer):
                self._liveness.note_disconnected(peer, now)
                effects = []
            case Recalled(round_):
                self._vote_recovery.note_all_answered(round_)
                effects = []
            case Rebased(ledger):
                return self._rebase(ledger, now)
            case LeaveRequested():
                return self._leave(now)
        return effects + self._step(now)

    def _on_message(self, envelope: Envelope, now: float) -> list[Effect]:
        message = self.screen(envelope, now)
        # A message that is stored already changes nothing; answers to sync requests contain many such.
        if self._message_filter.has(envelope, round_of(message)):
            return []
        take = self._take_back if envelope.sender == self._me else self._take
        effects = take(envelope, message, now)
        return effects + self._step(now)

    def _on_entry(self, decided: Decided, now: float) -> list[Effect]:
        record = decided.record
        if record.round < self.round:
            known = self._ledger[record.round].record.id == record.id
            return [] if known else [CompareChains(record.round)]
        if record.round > self.round:
            self._lag_detector.note_behind()
            return []
        if record.parent != self._ledger.head and self.round > 0:
            return [CompareChains(self.round - 1)]
        if not self._current.binds(decided.certificate, leaving=self._leaving, now=now):
            self._current.keep(decided, now)
            raise ProtocolError(
                "silences_us", "a decision that counts members as silent which are heard here"
            )
        effects = self._adopt(decided, now, learned=True)
        return effects + self._step(now)

    def _loaded(self, what: Loaded, now: float) -> list[Effect]:
        self._replica.loaded(what.round, what.fingerprint, what.snapshot)
        self._training.forget()
        self._held_updates.loaded()
        self._current.start = now
        return self._fetch_announced()

    def _rebase(self, ledger: Ledger, now: float) -> list[Effect]:
        """Switch to a heavier chain: drop what was applied since the fork and rejoin."""
        ledger.held, self._ledger = self._ledger.bound, ledger
        self._lease.start_over()
        self._auditor.start_over()
        self._solo_guard.begin(now)
        self._enter_round(now)
        self.restore(self._message_filter.start_over(), now)
        return [Note("forked", self.round), *self._replica.rebase()]

    def _trained(self, made: Trained, now: float) -> list[Effect]:
        self._training.capacity.trained(made.sequences, made.computing, made.encoding)
        announced = self._current.collection.announced(self._me)
        # Until recovery is complete: before a restart, another update may have been announced.
        recalls = not self._vote_recovery.complete
        if made.round != self.round or not self.at_tip or not self.is_member or recalls:
            self._training.keep(made, self.round)
        elif not announced and self._training.owes(made.round, made.assigned_in, self._ledger):
            return self._announce(made, now) + self._step(now)
        return []

    def _applied(self, what: Applied, now: float) -> list[Effect]:
        if not self.awaits(what.round):
            return []
        self._training.capacity.applied(what.seconds)
        self._replica.applied(what.round, what.fingerprint, what.snapshot)
        record = self._ledger[what.round].record
        self._held_updates.applied(what.round, {entry.update for entry in record.updates})
        if self.at_tip:
            self._current.start = now
        effects = self._auditor.applied(what.round, self._ledger)
        return [*effects, *self._fetch_announced(), *self._step(now)]

    def _leave(self, now: float) -> list[Effect]:
        self._leaving = True
        # In round 0 there are no others to inform, and one member has to remain; at the end of the run
        # members do not wait for each other.
        if not self.is_member or self.round == 0 or self._ledger.finished:
            return []
        return self._send("leave", Leave(self.round), now) + self._step(now)

    def _tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self.is_member and not self._leaving:
            # At the end of the run the others wait for a last heartbeat. It names the round after the
            # last one, and shows that this member has everything.
            sent_end = self._sent_end or not self.is_finished
            if now - self._last_sent > self._timeouts.heartbeat or not sent_end:
                self._sent_end = self.is_finished
                self._count += 1
                effects += self._send("heartbeat", Heartbeat(self.round, self._count), now)
        elif self._wants_in and (request := self._admission.renew(self.round, self.at_tip, now)):
            effects += self._send("join", request, now)
        # The result is usually final. If it is not, the others may have reached another one, so this
        # member keeps asking.
        if self.is_finished and self._ledger.outcome_is_final:
            return effects
        if self.is_abandoned(now) or not self._ledger.anchored:
            self._lag_detector.note_other_chain()
        silence = self._timeouts.lease
        moved = self._lease.observe(
            self._ledger, is_member=self.is_member, silence=silence, now=now
        )
        if moved is not None:
            effects.append(Note("finalized", moved))
        # While updates are awaited, silence is normal. But a member that has seen no decision since its
        # start asks at once: the others may have sent much before.
        has_decided = self._last_decision > float("-inf")
        waiting = has_decided and self.is_member and self._current.ready_since is None
        patience = self._timeouts.lease / 4 if waiting else 0.0
        follows, last = not self.is_member or not self.at_tip, self._last_decision
        return effects + self._lag_detector.requests(
            self._ledger, last=last, patience=patience, follows=follows, now=now
        )

    # Messages

    def _take(self, envelope: Envelope, message: Message, now: float) -> list[Effect]:
        self._current.note_activity(envelope.sender, message, now)
        if isinstance(message, Heartbeat):
            if message.round > self.round:
                self._lag_detector.note_behind()
            self._liveness.note_heartbeat(envelope.sender, message, now)
            return []
        if isinstance(message, JoinRequest):
            self._joins.put(envelope.sender, message, envelope.signature, now)
            return []
        if isinstance(message, Evidence):
            self._accusations.put(message, envelope)
            return []
        if isinstance(message, (AuditMessage, ReauditMessage)):
            self._auditor.put(envelope.sender, message, envelope.signature)
            return []
        round_ = round_of(message)
        self._message_filter.stand_by(envelope, self._me)
        if envelope.sender == self._me and isinstance(message, Announcement):
            self._replica.note_own(round_, message.update)
        past = round_ < self.round
        if past and isinstance(message, Announcement):
            # Not noted while this member catches up: then all announcements are late.
            return [Note("late", round_, envelope.sender)] if self.at_tip else []
        if self._message_filter.has(envelope, round_) or (past and not isinstance(message, Leave)):
            return []
        # This raises if the current round refuses the message, which then is neither kept nor forwarded.
        effects = self._handle(envelope, message, now) if round_ <= self.round else []
        if past:
            return effects
        # Only a new message proves that its sender is alive: peers repeat messages of dead ones.
        self._liveness.note_message(envelope.sender, now)
        known = envelope.sender == self._me or envelope.sender in self._current.membership
        self._message_filter.keep(envelope, round_, member=known)
        if round_ > self.round:
            self._lag_detector.note_behind()
        return effects

    def _take_back(self, envelope: Envelope, message: Message, now: float) -> list[Effect]:
        """Handle an own signed message that another member sent back, and write it to disk again."""
        round_ = round_of(message)
        binding = isinstance(message, (Announcement, Proposal, Ballot))
        if not binding or round_ < self.round:
            return []
        return [LogMessage(envelope), *self._take(envelope, message, now)]

    def _handle(self, envelope: Envelope, message: Message, now: float) -> list[Effect]:
        """Handle a message of the current round, or a leave sent in the one before."""
        if parent_of(message) not in (None, self._ledger.parent(round_of(message))):
            self._lag_detector.note_behind()
            self._lag_detector.note_misfit(envelope.sender, message, self._ledger)
            raise ProtocolError("wrong_parent", "a message of another chain")
        self._current.take(envelope, message, self._held_updates.held, now)
        if isinstance(message, Announcement) and self._replica.is_near(self._ledger):
            return self._held_updates.fetch(
                self.round, envelope.sender, message.update, message.size
            )
        return []

    def _fetch_announced(self) -> list[Effect]:
        """Request the updates announced in the round at the tip, once only a few rounds are still to be
        applied. A member that is far behind needs the updates of those rounds first, and its connection
        may be slow."""
        if not self._replica.is_near(self._ledger):
            return []
        announced = self._current.collection.announcements()
        return [
            effect
            for peer, announcement in announced
            for effect in self._held_updates.fetch(
                self.round, peer, announcement.update, announcement.size
            )
        ]

    def _send(self, kind: str, message: Message, now: float) -> list[Effect]:
        """Sign a message, handle it and publish it."""
        envelope = self._sign(kind, encode(message))
        self._last_sent = now
        effects: list[Effect] = [Publish(envelope, durable=kind not in _FLEETING)]
        if kind != "join":
            effects += self._take(envelope, message, now)
        return effects

    def _send_all(self, messages: Iterable[tuple[str, Message]], now: float) -> list[Effect]:
        return [effect for kind, message in messages for effect in self._send(kind, message, now)]

    def _announce(self, made: Trained, now: float) -> list[Effect]:
        assert self.fingerprint is not None  # only at the tip
        self._held_updates.held.add(made.update)
        capacity = self._training.capacity.stated(self._timeouts.round_seconds)
        commitment = b""
        if draws_lots(self._ledger.manifest):
            commitment = self._auditor.commitment(made.round, self._ledger.head)
        announcement = announcement_of(made, self._ledger, self.fingerprint, capacity, commitment)
        effects = self._send("announcement", announcement, now)
        self._current.collection.held(made.update, now)
        return effects

    # The loop

    def _step(self, now: float) -> list[Effect]:
        """Do everything that can be done now."""
        if self._liveness.tick(now):
            self._solo_guard.begin(now)
        self._current.listen(now)
        effects: list[Effect] = []
        if self.at_tip and self.is_member:
            self._ledger.binding = True
            recalled = self._vote_recovery.complete
            made = self._training.due(self._ledger) if recalled else None
            if made is not None and not self._current.collection.announced(self._me):
                effects += self._announce(made, now)
        while True:
            more = self._decide(now) or self._agree(now)
            if not more:
                break
            effects += more
        if self.at_tip and self.is_member:
            effects += self._replica.doubt(self.round, self._current.collection)
        effects += self._accuse(now)
        if self.is_member:
            effects += self._send_all(self._auditor.finished_reaudits(self._ledger), now)
        return effects + self._replica.next(self._ledger, self._held_updates) + self._train()

    def _train(self) -> list[Effect]:
        if not self.at_tip or not self.is_member or self._leaving:
            return []
        announced = self._current.collection.announced(self._me)
        if self._ledger.manifest.aggregates_in(self.round):
            patience = _SIGN_VOTES_SHARE * self._timeouts.collect
            return [
                *self._training.next_aggregate(self._ledger, announced=announced, patience=patience)
            ]
        trainings = self._training.next_work(self._ledger, announced=announced)
        return [self._auditor.with_audit(each, self._ledger) for each in trainings]

    def _decide(self, now: float) -> list[Effect]:
        """Move to the next round if this one is decided and its record known."""
        current = self._current
        certificate = current.consensus.decision
        if certificate is None or not current.binds(certificate, leaving=self._leaving, now=now):
            return self._follow_kept(now)
        record = current.consensus.records.get(certificate.block)
        # A quorum with honest members never signs an invalid record; other quorums are not followed.
        if record is None or not current.is_valid(record):
            return []
        if self.at_tip:
            current.observe(certificate, self._training.capacity, now)
        return self._adopt(Decided(record, certificate), now)

    def _follow_kept(self, now: float) -> list[Effect]:
        """Follow the others' decision that was kept while this member listened, once it binds."""
        kept = self._current.kept
        if kept is None or not self._current.binds(
            kept.certificate, leaving=self._leaving, now=now
        ):
            return []
        return self._adopt(kept, now, learned=True)

    def _agree(self, now: float) -> list[Effect]:
        """Send what the current round requires."""
        if not self._vote_recovery.complete:
            members = len(self._current.membership)
            asks = self.at_tip and self.is_member
            requests = self._vote_recovery.ask(self.round, members, now) if asks else []
            if not self._vote_recovery.complete:
                return requests
        fingerprint = self.fingerprint if self.at_tip else None
        round_input = RoundInput(fingerprint, self._replica.snapshot, self._held_updates.held)
        slot = self._current.consensus.slot
        step = self._current.step(round_input, now)
        if self._current.consensus.slot > slot:
            # The slot was skipped: its leader lacked records or updates that others have, or this member
            # does, so it asks for them.
            self._lag_detector.note_behind()
        effects: list[Effect] = [LogMessage(envelope) for envelope in step.remember]
        effects += [*step.notes, *self._held_updates.fetch_all(self.round, step.fetch)]
        return effects + self._send_all(step.send, now)

    def _accuse(self, now: float) -> list[Effect]:
        """Send the others the proofs of contradictions, one for each peer: whichever member leads next
        can put them into a record."""
        effects: list[Effect] = []
        current = self._current
        known = {**current.consensus.contradictions, **current.collection.contradictions}
        for peer, evidence in known.items():
            if self.is_member and peer != self._me and self._accusations.wants(peer):
                effects += self._send("evidence", evidence, now)
        return effects

    def _adopt(self, decided: Decided, now: float, *, learned: bool = False) -> list[Effect]:
        record, change = decided.record, self._ledger.versions.change
        before = snapshot_of(self._ledger.find(AuditLedger))
        self._ledger.append(decided)
        undoubted = self._current.consensus.believes(decided.certificate)
        if undoubted:
            self._last_undoubted = now
        listens = self._current.listens(now)
        self._solo_guard.decided(beyond_doubt=undoubted and not learned, listens=listens, now=now)
        effects: list[Effect] = [StoreEntry(decided), *notes_of(record, self._me)]
        effects += notes_of_change(change, self._ledger.versions.change)
        effects += notes_of_audits(before, self._ledger.find(AuditLedger), record.round, self._me)
        for admission in record.admitted:
            self._joins.drop(admission.peer)
        self._last_ready = self._current.ready_since
        self._held_updates.decided(self._ledger, self.applied_round)
        self._enter_round(now)
        effects += self._auditor.reaudits_due(self._ledger) if self.is_member else []
        self._last_decision = now
        for envelope in self._message_filter.enter(self.round):
            try:
                effects += self._handle(envelope, decode_message(envelope), now)
            except ProtocolError:
                # The message could not be checked before this round was known. It is invalid: drop it.
                continue
        return effects
