"""A member of a swarm: the whole of the rules as one state machine.

It is told what arrives, what is held, trained and applied, and what time it is; it answers with effects
(`effects`). It follows one loop: apply whatever is decided and not applied; at the tip, train, collect
updates, agree on the record. A newcomer, a restarted node and one that fell behind are the same case:
they hold a ledger that is longer than what they have applied.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from ...crypto.envelope import Envelope
from ...crypto.hashing import ContentId
from ...crypto.identity import PeerId
from ..chain.ledger import Ledger
from ..wire.encoding import encode
from ..wire.errors import ProtocolError
from ..wire.manifest import Manifest
from ..wire.messages import (
    Announcement,
    Ballot,
    Decided,
    Evidence,
    Heartbeat,
    JoinRequest,
    Leave,
    Message,
    Proposal,
    SnapshotEntry,
    decode_message,
    parent_of,
    round_of,
)
from .admission import AdmissionRequest
from .collection import Holdings
from .effects import Effect, Fork, Keep, Note, Publish, Remember
from .inbox import Inbox
from .mailbox import MEMBER_BYTES, NEWCOMER_BYTES
from .pacing import Pacing
from .presence import Presence
from .replica import Replica
from .round import Round, Standing
from .states import MemberState
from .training import Made, Training
from .vote_recovery import VoteRecovery

Sign = Callable[[str, bytes], Envelope]
"""(kind, body) → the signed envelope of this member."""

# What binds its sender to nothing, and so need not survive a restart.
_FLEETING = ("heartbeat", "join", "evidence")


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
        session: int,
        ticket: bytes = b"",
        recall: bool = False,
    ) -> None:
        """`session` must grow from one start of the node to the next (seconds of a wall clock do).

        With `recall` it asks the others what it said in an earlier life before it casts a ballot.
        """
        self.ledger = ledger
        self.me = me
        self.replica = Replica(me, manifest.rounds.snapshot_interval)
        """Where the parameters stand."""
        self.pacing = Pacing(manifest.rounds)
        self.presence = Presence(me, now)
        self._manifest = manifest
        self._sign = sign
        self._admission = AdmissionRequest(ticket, now)
        self._inbox = Inbox(manifest, self.presence, now)
        self._vote_recovery = VoteRecovery(needed=recall)
        self._holdings = Holdings()
        self._training = Training(me, overlap=manifest.rounds.overlap)
        self._leaving = False
        # Nothing was decided before our eyes yet: until then, others know better what is going on.
        self._last_decision = self._last_sound = float("-inf")
        self._began = self._last_said = now
        self._count = session << 20
        self.current = self._new_round(now)
        """The round at the tip."""
        self.last_ready: float | None = None
        """Since when the round before it need not have waited for more updates, if known."""
        self.presence.set_members(self.members, now)

    # What people ask

    @property
    def round(self) -> int:
        """The round that is being agreed on."""
        return len(self.ledger)

    @property
    def members(self) -> tuple[PeerId, ...]:
        """The members of the current round."""
        return self.ledger.membership(self.round).peers

    @property
    def is_member(self) -> bool:
        """Whether this node is one of them."""
        return self.me in self.current.membership

    @property
    def is_expelled(self) -> bool:
        """Whether a record proves that this node's identity contradicted itself: it may never return."""
        return self.me in self.ledger.membership(self.round).expelled

    @property
    def at_tip(self) -> bool:
        """Whether the parameters contain everything that is decided."""
        return self.replica.is_current(self.ledger) and self.ledger.anchored

    @property
    def applied_round(self) -> int:
        """The last round whose record the parameters contain; -1 for the initial parameters."""
        return self.replica.round

    @property
    def fingerprint(self) -> int | None:
        """Of the parameters after `applied_round`; None until they are loaded."""
        return self.replica.fingerprint

    @property
    def state(self) -> MemberState:
        """Where this member stands, as in `states`; it changes with what happens only."""
        if self.is_expelled:
            return "expelled"
        if self._leaving:
            return "leaving" if self.is_member else "left"
        if not self.at_tip:
            return "loading" if self.fingerprint is None else "applying"
        if not self.is_member:
            return "asking"
        if not self._vote_recovery.complete:
            return "recalling"
        return "collecting" if self.current.ready_since is None else "agreeing"

    def is_abandoned(self, now: float) -> bool:
        """Whether this node asks in vain: of its chain's members none is left there."""
        return self._wants_in and self.current.is_abandoned(now)

    def awaits(self, round: int) -> bool:
        """Whether the record of `round` is being applied for this member, on the chain it follows."""
        return self.replica.awaits(round)

    def messages(self, round: int) -> list[Envelope]:
        """The round's signed messages, for a peer that asks what it missed."""
        return self._inbox.messages(round, self.ledger)

    # What happens

    def restore(self, envelopes: Iterable[Envelope], now: float) -> None:
        """Take back what this member signed before a restart, so that it does not contradict it.

        Proposals of others that it voted for are taken back with it: it may be the last who has them.
        Words about another chain are passed over; those about rounds still to come (the ledger's end
        was lost) wait for their round. A leave is taken back by the return: were it still passed on,
        members that left together would count each other out as soon as they are back. Raises
        `ProtocolError` for what is no message.
        """
        for envelope in envelopes:
            message = decode_message(envelope)
            own = envelope.sender == self.me and not isinstance(message, Leave)
            if own or isinstance(message, Proposal):
                with contextlib.suppress(ProtocolError):
                    self._take(envelope, message, now)

    def loaded(
        self, round: int, fingerprint: int, snapshot: SnapshotEntry | None, now: float
    ) -> list[Effect]:
        """The parameters now are those after `round`, out of a snapshot.

        `snapshot` is that of `round` if one was due there.
        """
        self.replica.loaded(round, fingerprint, snapshot)
        self._training.forget()
        self._holdings.loaded(self.current.collection.updates, self.ledger, round)
        self.current.start = now
        effects: list[Effect] = []
        for peer, said in self.current.collection.announcements():
            effects += self._holdings.fetch(self.round, peer, said.update, said.size)
        return effects + self._step(now)

    def rebase(self, ledger: Ledger, now: float) -> list[Effect]:
        """Change to a heavier chain: drop what was applied since the fork and rejoin."""
        self.ledger = ledger
        self._enter_round(now)
        self.restore(self._inbox.start_over(), now)
        lost = self.replica.drop("the swarm followed a heavier chain")
        return [Note("forked", self.round), *lost]

    def screen(self, envelope: Envelope, now: float) -> Message:
        """Check a message as far as possible before it is forwarded. Raises `ProtocolError`."""
        return self._inbox.screen(envelope, self.ledger, now)

    def receive(self, envelope: Envelope, now: float) -> list[Effect]:
        """A message arrived whose signature was checked. Raises `ProtocolError`."""
        message = self.screen(envelope, now)
        # What was heard before changes nothing; answers to sync requests are full of it.
        if self._inbox.mailbox.has(round_of(message), envelope):
            return []
        take = self._take_back if envelope.sender == self.me else self._take
        effects = take(envelope, message, now)
        return effects + self._step(now)

    def recalled(self, round: int, now: float) -> list[Effect]:
        """Every other member was asked what it knows of `round`, and has answered."""
        self._vote_recovery.answered(round)
        return self._step(now)

    def receive_decided(self, decided: Decided, now: float) -> list[Effect]:
        """A ledger entry arrived, from whomever. Raises `ProtocolError` if it does not hold."""
        record = decided.record
        if record.round < self.round:
            known = self.ledger[record.round].record.id == record.id
            return [] if known else [Fork(record.round)]
        if record.round > self.round:
            self._inbox.divergence.behind()
            return []
        if record.parent != self.ledger.head and self.round > 0:
            return [Fork(self.round - 1)]
        if not self.current.binds(decided.certificate, leaving=self._leaving, now=now):
            raise ProtocolError("silences_us", "a decision that calls those silent who are heard")
        effects = self._adopt(decided, now)
        return effects + self._step(now)

    def update_held(self, update: ContentId, now: float) -> list[Effect]:
        """The bytes of `update` are in the store and passed the codec's checks."""
        self._holdings.arrived(update, self.ledger, self.applied_round)
        self.current.collection.held(update, now)
        return self._step(now)

    def update_bad(self, update: ContentId, now: float) -> list[Effect]:
        """The bytes of `update` are not an update of this swarm's layout."""
        self.current.collection.bad(update)
        return self._step(now)

    def trained(
        self, round: int, update: ContentId, size: int, tokens: int, loss: float, now: float
    ) -> list[Effect]:
        """The own update for `round` is in the store."""
        made = Made(round, update, size, tokens, loss)
        if round != self.round or not self.at_tip or not self.is_member:
            self._training.keep(made, self.round)
            return []
        if self.current.collection.announced(self.me):
            return []
        return self._announce(made, now) + self._step(now)

    def applied(
        self, round: int, fingerprint: int, snapshot: SnapshotEntry | None, now: float
    ) -> list[Effect]:
        """The record of `round` is in the parameters."""
        if not self.awaits(round):
            return []
        self.replica.applied(round, fingerprint, snapshot)
        self._holdings.applied({entry.update for entry in self.ledger[round].record.updates})
        if self.at_tip:
            self.current.start = now
        return self._step(now)

    def peer_up(self, peer: PeerId, now: float) -> list[Effect]:
        """A connection to `peer` exists."""
        self.presence.found(peer)
        return self._step(now)

    def peer_down(self, peer: PeerId, now: float) -> list[Effect]:
        """The last connection to `peer` broke."""
        self.presence.lost(peer, now)
        return self._step(now)

    def leave(self, now: float) -> list[Effect]:
        """Say goodbye. The node should stay until `is_member` is false or its patience ends."""
        self._leaving = True
        # In round 0 there is nobody to tell, and somebody has to stay in the book.
        if not self.is_member or self.round == 0:
            return []
        return self._say("leave", Leave(self.round), now) + self._step(now)

    def tick(self, now: float) -> list[Effect]:
        """Time passes. Call at least a few times a second."""
        effects: list[Effect] = []
        if self.is_member and not self._leaving:
            if now - self._last_said > self.pacing.heartbeat:
                self._count += 1
                effects += self._say("heartbeat", Heartbeat(self.round, self._count), now)
        elif self._wants_in and (request := self._admission.renew(self.round, self.at_tip, now)):
            effects += self._say("join", request, now)
        if self.is_abandoned(now) or not self.ledger.anchored:
            self._inbox.divergence.parted()
        # Who has just come back asks at once: much may have been said before.
        seen = self._last_decision > float("-inf")
        waiting = seen and self.is_member and self.current.ready_since is None
        patience = self.pacing.lease / 4 if waiting else 0.0
        follows, last = not self.is_member or not self.at_tip, self._last_decision
        effects += self._inbox.divergence.questions(
            self.ledger, last=last, patience=patience, follows=follows, now=now
        )
        return effects + self._step(now)

    @property
    def _wants_in(self) -> bool:
        out = not (self.is_member or self.is_expelled or self._leaving)
        return out and self.replica.is_near(self.ledger)

    # Messages

    def _take(self, envelope: Envelope, message: Message, now: float) -> list[Effect]:
        self.current.meet(envelope.sender, message, now)
        if isinstance(message, Heartbeat):
            if message.round > self.round:
                self._inbox.divergence.behind()
            self.presence.beat(envelope.sender, message.count, now)
            return []
        if isinstance(message, JoinRequest):
            self._inbox.joins.put(envelope.sender, message, envelope.signature, now)
            return []
        if isinstance(message, Evidence):
            self._inbox.accusations.put(message, envelope)
            return []
        round_ = round_of(message)
        self._inbox.stand_by(envelope, self.me)
        if envelope.sender == self.me and isinstance(message, Announcement):
            self.replica.made(round_, message.update)
        past = round_ < self.round
        if past and isinstance(message, Announcement):
            # To one who catches up everything comes late.
            return [Note("late", round_, envelope.sender)] if self.at_tip else []
        if self._inbox.mailbox.has(round_, envelope) or (past and not isinstance(message, Leave)):
            return []
        # What the current round refuses is not kept, let alone handed to others.
        effects = self._handle(envelope, message, now) if round_ <= self.round else []
        if past:
            return effects
        # Only what is new proves that its sender lives: peers repeat the words of the dead.
        self.presence.heard(envelope.sender, now)
        known = envelope.sender == self.me or envelope.sender in self.current.membership
        self._inbox.mailbox.put(round_, envelope, MEMBER_BYTES if known else NEWCOMER_BYTES)
        if round_ > self.round:
            self._inbox.divergence.behind()
        return effects

    def _take_back(self, envelope: Envelope, message: Message, now: float) -> list[Effect]:
        """Something that we signed comes back to us. If we have no memory of it, we have one now."""
        round_ = round_of(message)
        binding = isinstance(message, (Announcement, Proposal, Ballot))
        if not binding or round_ < self.round:
            return []
        return [Remember(envelope), *self._take(envelope, message, now)]

    def _handle(self, envelope: Envelope, message: Message, now: float) -> list[Effect]:
        """Take in a message of the current round, or a leave said in the one before."""
        if parent_of(message) not in (None, self.ledger.parent(round_of(message))):
            self._inbox.divergence.behind()
            self._inbox.divergence.stray(envelope.sender, message, self.ledger)
            raise ProtocolError("wrong_parent", "a message that builds on another chain")
        return self.current.take(envelope, message, self._holdings, now)

    def _say(self, kind: str, message: Message, now: float) -> list[Effect]:
        """Sign a message, take it in ourselves and publish it."""
        envelope = self._sign(kind, encode(message))
        self._last_said = now
        effects: list[Effect] = [Publish(envelope, durable=kind not in _FLEETING)]
        if kind != "join":
            effects += self._take(envelope, message, now)
        return effects

    def _announce(self, made: Made, now: float) -> list[Effect]:
        assert self.fingerprint is not None  # only at the tip
        self._holdings.held.add(made.update)
        announcement = made.announcement(self.ledger.head, self.fingerprint)
        effects = self._say("announcement", announcement, now)
        self.current.collection.held(made.update, now)
        return effects

    # The loop

    def _step(self, now: float) -> list[Effect]:
        """Do whatever can be done now."""
        self.presence.tick(now)
        effects: list[Effect] = []
        if self.at_tip and self.is_member:
            self.ledger.binding = True
            made = self._training.due(self.round)
            if made is not None and not self.current.collection.announced(self.me):
                effects += self._announce(made, now)
        while True:
            more = self._decide(now) or self._agree(now)
            if not more:
                break
            effects += more
        if self.at_tip and self.is_member:
            members = len(self.current.membership)
            effects += self.replica.doubt(self.round, self.current.collection, members)
        effects += self._accuse(now)
        return effects + self.replica.next(self.ledger, self._holdings) + self._train()

    def _train(self) -> list[Effect]:
        if not self.at_tip or not self.is_member or self._leaving:
            return []
        announced = self.current.collection.announced(self.me)
        return self._training.orders(self.ledger, announced=announced)

    def _decide(self, now: float) -> list[Effect]:
        """Move to the next round if this one is decided and its record known."""
        current = self.current
        certificate = current.agreement.decision
        if certificate is None or not current.binds(certificate, leaving=self._leaving, now=now):
            return []
        record = current.agreement.records.get(certificate.block)
        # No quorum of honest members signs for what the chain forbids; others are not followed.
        if record is None or not current.is_valid(record):
            return []
        if self.at_tip:
            current.observe(certificate, now)
        return self._adopt(Decided(record, certificate), now)

    def _agree(self, now: float) -> list[Effect]:
        """Say whatever the current round asks for."""
        if not self._vote_recovery.complete:
            members = len(self.current.membership)
            asks = self.at_tip and self.is_member
            question = self._vote_recovery.ask(self.round, members, now) if asks else []
            if not self._vote_recovery.complete:
                return question
        fingerprint = self.fingerprint if self.at_tip else None
        standing = Standing(fingerprint, self.replica.snapshot, self._holdings.held)
        step = self.current.step(standing, now)
        effects: list[Effect] = [Remember(envelope) for envelope in step.remember]
        effects += [*step.notes, *self._holdings.fetch_all(self.round, step.fetch)]
        for kind, message in step.say:
            effects += self._say(kind, message, now)
        return effects

    def _accuse(self, now: float) -> list[Effect]:
        """Tell the others who has contradicted itself, once each: one of us will lead."""
        effects: list[Effect] = []
        for peer, evidence in self.current.agreement.contradictions.items():
            if self.is_member and peer != self.me and self._inbox.accusations.wants(peer):
                effects += self._say("evidence", evidence, now)
        return effects

    def _adopt(self, decided: Decided, now: float) -> list[Effect]:
        record = decided.record
        self.ledger.append(decided)
        if self.current.agreement.believes(decided.certificate):
            self._last_sound = now
        effects: list[Effect] = [Keep(decided), Note("decided", record.round)]
        for admission in record.admitted:
            effects.append(Note("admitted", record.round, admission.peer))
            self._inbox.joins.drop(admission.peer)
        for departure in record.departed:
            kind = "counted_out" if departure.peer == self.me else departure.reason
            effects.append(Note(kind, record.round, departure.peer))
        for evidence in record.evidence:
            effects.append(Note("expelled", record.round, evidence.peer))
        self.last_ready = self.current.ready_since
        self._holdings.decided(self.current.collection.updates, self.ledger, self.applied_round)
        self._enter_round(now)
        self._last_decision = now
        self._inbox.mailbox.forget_before(self.round)
        for envelope in self._inbox.mailbox.of_round(self.round):
            try:
                effects += self._handle(envelope, decode_message(envelope), now)
            except ProtocolError:
                # It could not be checked before we knew this round; now it is merely useless.
                continue
        return effects

    def _enter_round(self, now: float) -> None:
        self.presence.set_members(self.members, now)
        self._inbox.accusations.forget(self.ledger)
        self.current = self._new_round(now)

    def _new_round(self, now: float) -> Round:
        return Round(
            manifest=self._manifest,
            ledger=self.ledger,
            me=self.me,
            presence=self.presence,
            pacing=self.pacing,
            joins=self._inbox.joins,
            accusations=self._inbox.accusations,
            began=self._began,
            sound=self._last_sound,
            now=now,
        )
