"""A member of a swarm: all rules of the protocol as one state machine.

Its inputs report received messages, updates held, work done and the time (`inputs`); its outputs are
effects (`effects`); what others may know of it is in its `view`. It follows one loop: apply the decided
records that are not applied yet; at the tip, train, collect updates, and agree on the record. A
newcomer, a restarted node and one that fell behind are the same case: their ledger has records that they
have not applied.

The member is composed: `parts` holds its state, `MessageIntake` takes in messages, `Outbox` sends them,
`ChainFollower` moves from round to round. `Member` decides what is done in which order.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...crypto.envelope import Envelope
from ...crypto.identity import PeerId
from ..chain.ledger import Ledger
from ..wire.checkpoint import Checkpoint
from ..wire.errors import ProtocolError
from ..wire.manifest import Manifest
from ..wire.messages import Decided, Heartbeat, Leave
from .beacon_secrets import Sign
from .chain_follower import ChainFollower
from .effects import Effect, LogMessage, Note, StoreFinality
from .inputs import (
    Applied,
    Connected,
    Disconnected,
    EntryReceived,
    FeatureInput,
    Input,
    LeaveRequested,
    Loaded,
    MessageReceived,
    Rebased,
    Recalled,
    Tick,
    Trained,
    UpdateBad,
    UpdateHeld,
    UpdatesGone,
)
from .member_part import TipWork
from .message_intake import MessageIntake
from .outbox import Outbox
from .parts import MemberParts
from .round_io import RoundInput
from .states import move
from .view import MemberView


class Member:
    """One node's part in a swarm. All times are seconds of any steady clock."""

    def __init__(
        self,
        *,
        manifest: Manifest,
        me: PeerId,
        sign: Sign,
        ledger: Ledger,
        now: float,
        start_number: int,
        ticket: bytes = b"",
        recall: bool = False,
    ) -> None:
        """`start_number` must be larger at each start of the node than at the one before. `ticket` is
        the invitation, in a swarm that requires one.

        With `recall`, the member asks the others for its own earlier messages before it casts a ballot.
        """
        self.parts = MemberParts(
            manifest=manifest,
            me=me,
            sign=sign,
            ledger=ledger,
            now=now,
            ticket=ticket,
            recall=recall,
        )
        """The state of the member; only its own modules and tests look into it."""
        self.view = MemberView(self.parts)
        self._intake = MessageIntake(self.parts, self.view)
        self._outbox = Outbox(self.parts, self._intake, now)
        self._chain = ChainFollower(self.parts, self.view, self._intake)
        self._kept_final: Checkpoint | None = None
        self._heartbeats = start_number << 20
        # Whether it has announced that it has the whole of a finished run.
        self._sent_end = False

    def restore(self, envelopes: Iterable[Envelope], now: float) -> None:
        """Take in again what this member signed before a restart, so that it does not contradict itself.

        `envelopes` also contain the others' proposals that it voted for, and the others' votes on which
        it finalized: it may hold the last copy of them. Messages of another chain are skipped; messages
        of future rounds (if the ledger's end was lost) wait for their round. A leave is ignored, because
        the member is back: if it were still passed on, members that left together would not count each
        other once they are back. Raises `ProtocolError` for an envelope that is not a message.
        """
        self._intake.restore(envelopes, now)

    def screen(self, received: MessageReceived, now: float) -> None:
        """Check a message as far as possible before it is forwarded. Raises `ProtocolError`."""
        if self.view.is_outdated:
            raise ProtocolError(
                "version", "the swarm uses a newer protocol version than this node supports"
            )
        self._intake.screen(received, now)

    def handle(self, what: Input, now: float) -> list[Effect]:
        """Process an input. Returns the effects to carry out, in this order.

        Raises `ProtocolError` for an invalid message or ledger entry.
        """
        # An outdated member ignores all inputs: the others' messages may have meanings unknown to it.
        effects = [] if self.view.is_outdated else self._take_in(what, now)
        self.parts.state = move(self.parts.state, self.view.conditions)
        ledger = self.view.ledger
        bound = ledger.bound if ledger.binding else None
        if bound is not None and bound != self._kept_final:
            self._kept_final = bound
            effects.append(StoreFinality(bound))
        return effects

    # Inputs, one by one

    def _take_in(self, what: Input, now: float) -> list[Effect]:
        parts = self.parts
        effects: list[Effect] = []
        match what:
            case MessageReceived():
                found = self._intake.receive(what, now)
                if found is None:
                    return []
                effects = found
            case Tick():
                effects = self._tick(now)
            case EntryReceived(decided):
                return self._take_entry(decided, now)
            case UpdateHeld(update):
                parts.held_updates.arrived(update, parts.ledger, parts.replica.round)
                parts.round.collection.held(update, now)
            case UpdateBad(update):
                parts.round.collection.mark_invalid(update)
            case UpdatesGone(round_):
                return parts.replica.overtaken(round_, parts.ledger)
            case Trained():
                return self._take_update(what, now)
            case FeatureInput():
                for feature in parts.features:
                    effects += self._outbox.send_all(feature.on_input(what, parts.ledger), now)
            case Applied():
                return self._advance(what, now)
            case Loaded():
                effects = self._load(what, now)
            case Connected(peer):
                parts.liveness.note_connected(peer)
            case Disconnected(peer):
                parts.liveness.note_disconnected(peer, now)
            case Recalled(round_):
                parts.vote_recovery.note_all_answered(round_)
            case Rebased(ledger):
                return self._chain.rebase(ledger, now)
            case LeaveRequested():
                return self._leave(now)
        return effects + self._step(now)

    def _take_entry(self, decided: Decided, now: float) -> list[Effect]:
        misfit = self._chain.misfit(decided.record)
        if misfit is not None:
            return misfit
        return self._chain.learn(decided, now) + self._step(now)

    def _take_update(self, made: Trained, now: float) -> list[Effect]:
        """Announce an own update, or keep it until its round has come."""
        view, training = self.view, self.parts.training
        training.capacity.trained(made.sequences, made.computing, made.encoding)
        announced = self.parts.round.collection.announced(view.me)
        # Until recovery is complete: before a restart, another update may have been announced.
        recalls = not self.parts.vote_recovery.complete
        if made.round != view.round or not view.at_tip or not view.is_member or recalls:
            training.keep(made, view.round)
        elif not announced and training.owes(made.round, made.assigned_in, view.ledger):
            return self._outbox.announce(made, now) + self._step(now)
        return []

    def _load(self, what: Loaded, now: float) -> list[Effect]:
        parts = self.parts
        parts.replica.loaded(what.round, what.fingerprint, what.snapshot)
        parts.training.forget()
        for feature in parts.features:
            feature.loaded()
        parts.held_updates.loaded()
        parts.round.start = now
        return self._fetch_announced()

    def _advance(self, what: Applied, now: float) -> list[Effect]:
        """Note that the parameters contain one more record."""
        parts, view = self.parts, self.view
        if not view.awaits(what.round):
            return []
        parts.training.capacity.applied(what.seconds)
        parts.replica.applied(what.round, what.fingerprint, what.snapshot)
        record = view.ledger[what.round].record
        parts.held_updates.applied(what.round, {entry.update for entry in record.updates})
        if view.at_tip:
            parts.round.start = now
        effects: list[Effect] = []
        for feature in parts.features:
            effects += feature.applied(what.round, view.ledger)
        return [*effects, *self._fetch_announced(), *self._step(now)]

    def _leave(self, now: float) -> list[Effect]:
        view = self.view
        self.parts.leave_requested = True
        # In round 0 there are no others to inform, and one member has to remain; at the end of the run
        # members do not wait for each other.
        if not view.is_member or view.round == 0 or view.ledger.finished:
            return []
        return self._outbox.send("leave", Leave(view.round), now) + self._step(now)

    def _tick(self, now: float) -> list[Effect]:
        view = self.view
        effects = self._show_presence(now)
        # The result is usually final. If it is not, the others may have reached another one, so this
        # member keeps asking.
        if view.is_finished and view.ledger.outcome_is_final:
            return effects
        return effects + self._move_finality_on(now) + self._ask_for_records(now)

    def _show_presence(self, now: float) -> list[Effect]:
        """Send a heartbeat as a member, or a request for admission, if one is due."""
        parts, view = self.parts, self.view
        if view.is_member and not parts.leave_requested:
            # At the end of the run the others wait for a last heartbeat. It names the round after the
            # last one, and shows that this member has everything.
            sent_end = self._sent_end or not view.is_finished
            if now - self._outbox.last_sent > parts.timeouts.heartbeat or not sent_end:
                self._sent_end = view.is_finished
                self._heartbeats += 1
                beat = Heartbeat(view.round, self._heartbeats)
                return self._outbox.send("heartbeat", beat, now)
        elif view.wants_admission and (
            request := parts.admission.renew(view.round, view.at_tip, now)
        ):
            return self._outbox.send("join", request, now)
        return []

    def _move_finality_on(self, now: float) -> list[Effect]:
        parts, view = self.parts, self.view
        if view.is_abandoned(now) or not view.ledger.anchored:
            parts.lag_detector.note_other_chain()
        moved = parts.lease.observe(
            view.ledger, is_member=view.is_member, silence=view.lease, now=now
        )
        return [] if moved is None else [Note("finalized", moved)]

    def _ask_for_records(self, now: float) -> list[Effect]:
        parts, view = self.parts, self.view
        # While updates are awaited, silence is normal. But a member that has seen no decision since its
        # start asks at once: the others may have sent much before.
        has_decided = parts.last_decision > float("-inf")
        waiting = has_decided and view.is_member and view.ready_since is None
        patience = view.lease / 4 if waiting else 0.0
        follows = not view.is_member or not view.at_tip
        return parts.lag_detector.requests(
            view.ledger, last=parts.last_decision, patience=patience, follows=follows, now=now
        )

    # The loop

    def _step(self, now: float) -> list[Effect]:
        """Do everything that can be done now, in this order."""
        self._look_around(now)
        effects = self._announce_waiting(now)
        while more := self._chain.decide(now) or self._recall(now) or self._agree(now):
            effects += more
        return [
            *effects,
            *self._doubt(),
            *self._accuse(now),
            *self._send_results(now),
            *self.parts.replica.next(self.view.ledger, self.parts.held_updates),
            *self._train(),
        ]

    def _look_around(self, now: float) -> None:
        """Note an absence of this node, and who is heard."""
        if self.parts.liveness.tick(now):
            self.parts.solo_guard.begin(now)
        self.parts.round.listen(now)
        if self.view.at_tip and self.view.is_member:
            self.view.ledger.binding = True

    def _announce_waiting(self, now: float) -> list[Effect]:
        """Announce the update that was computed ahead of its round, if that has come."""
        parts, view = self.parts, self.view
        if not (view.at_tip and view.is_member and parts.vote_recovery.complete):
            return []
        made = parts.training.due(view.ledger)
        if made is None or parts.round.collection.announced(view.me):
            return []
        return self._outbox.announce(made, now)

    def _recall(self, now: float) -> list[Effect]:
        """Ask the others, before the first ballot, for what this member signed before it was started."""
        parts, view = self.parts, self.view
        if parts.vote_recovery.complete or not (view.at_tip and view.is_member):
            return []
        return parts.vote_recovery.ask(view.round, len(parts.round.membership), now)

    def _agree(self, now: float) -> list[Effect]:
        """Send what the current round requires."""
        parts, view = self.parts, self.view
        if not parts.vote_recovery.complete or self._chain.waits(now):
            return []
        fingerprint = view.fingerprint if view.at_tip else None
        round_input = RoundInput(fingerprint, parts.replica.snapshot, parts.held_updates.held)
        slot = parts.round.consensus.slot
        step = parts.round.step(round_input, now)
        if parts.round.consensus.slot > slot:
            # The slot was skipped: its leader lacked records or updates that others have, or this member
            # does, so it asks for them.
            parts.lag_detector.note_behind()
        effects: list[Effect] = [LogMessage(envelope) for envelope in step.remember]
        effects += [*step.notes, *parts.held_updates.fetch_all(view.round, step.fetch)]
        return effects + self._outbox.send_all(step.send, now)

    def _doubt(self) -> list[Effect]:
        """Reload the parameters if most others have different ones."""
        if not (self.view.at_tip and self.view.is_member):
            return []
        return self.parts.replica.doubt(self.view.round, self.parts.round.collection)

    def _accuse(self, now: float) -> list[Effect]:
        """Send the others the proofs of contradictions, one for each peer: whichever member leads next
        can put them into a record."""
        effects: list[Effect] = []
        parts, round_ = self.parts, self.parts.round
        known = {**round_.consensus.contradictions, **round_.collection.contradictions}
        for peer, evidence in known.items():
            if self.view.is_member and peer != parts.me and parts.accusations.wants(peer):
                effects += self._outbox.send("evidence", evidence, now)
        return effects

    def _send_results(self, now: float) -> list[Effect]:
        """Send what the features of the swarm have to send."""
        if not self.view.is_member:
            return []
        effects: list[Effect] = []
        for feature in self.parts.features:
            effects += self._outbox.send_all(feature.messages_due(self.view.ledger), now)
        return effects

    def _train(self) -> list[Effect]:
        """Order the next work from the trainer."""
        parts, view = self.parts, self.view
        if not view.at_tip or not view.is_member or parts.leave_requested:
            return []
        announced = parts.round.collection.announced(parts.me)
        at = TipWork(view.round, announced, parts.timeouts.collect)
        for feature in parts.features:
            work = feature.work(at, view.ledger)
            if work is not None:
                return work
        trainings = parts.training.next_work(view.ledger, announced=announced)
        for feature in parts.features:
            trainings = [feature.extend(each, view.ledger) for each in trainings]
        return [*trainings]

    def _fetch_announced(self) -> list[Effect]:
        """Request the updates announced in the round at the tip, once only a few rounds are still to be
        applied. A member that is far behind needs the updates of those rounds first, and its connection
        may be slow."""
        parts = self.parts
        if not parts.replica.is_near(parts.ledger):
            return []
        return [
            effect
            for peer, announcement in parts.round.collection.announcements()
            for effect in parts.held_updates.fetch(
                self.view.round, peer, announcement.update, announcement.size
            )
        ]
