"""Message intake: which messages are accepted and forwarded, what each kind does, and which are kept.

A message is screened before it is forwarded, by what is known at that time: its encoding, its round, and
whether its sender may send messages for that round. Then it is handled, which may still refuse it. One
table says for each kind how it is screened and handled (`MessageIntake.rules`); its type is in
`MESSAGE_TYPES`.

A message is decoded once and travels as a `MessageReceived`. Messages for later rounds are the one
exception: they are kept as bytes, since decoded ones take several times the memory, and decoded again
when their round has come.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...crypto.envelope import Envelope
from ...crypto.identity import PeerId
from ..chain.admissions import invited
from ..chain.evidence import check_evidence
from ..wire.errors import ProtocolError
from ..wire.messages import (
    Announcement,
    Ballot,
    Evidence,
    Heartbeat,
    JoinRequest,
    Leave,
    Message,
    Proposal,
    parent_of,
    round_of,
)
from .effects import Effect, LogMessage, Note
from .inputs import MessageReceived
from .member_part import MemberPart
from .message_store import FUTURE_ROUNDS, MEMBER_BYTES, NEWCOMER_BYTES
from .parts import MemberParts
from .view import MemberView

# Maximum body of a message by a stranger: more than any message needs, except proposals and evidence,
# which only members may send.
_STRANGER_BYTES = 4096


@dataclass(frozen=True)
class MessageRule:
    """How messages of one kind are treated."""

    screen: Callable[[PeerId, Any, float], None]
    """(sender, message, now): check it before it is forwarded. Raises `ProtocolError`."""
    handle: Callable[[Envelope, Any, float], list[Effect]]
    """(envelope, message, now): let it have its effect. Raises `ProtocolError` if it is refused."""
    durable: bool = False
    """Whether an own one must be on disk before any peer sees it: it binds its sender."""
    restored: bool = False
    """Whether an own one that another member sends back is taken in, and written to disk again."""


class MessageIntake:
    """Screening and handling of one member's messages, its own included."""

    def __init__(self, parts: MemberParts, view: MemberView) -> None:
        self._parts = parts
        self._view = view
        by_round = partial(MessageRule, self._screen_round, self._take_round_message)
        self.rules: Mapping[str, MessageRule] = {
            "announcement": by_round(durable=True, restored=True),
            "proposal": by_round(durable=True, restored=True),
            "vote": by_round(durable=True, restored=True),
            "skip": by_round(durable=True, restored=True),
            "finalize": by_round(durable=True, restored=True),
            "leave": by_round(durable=True),
            "heartbeat": MessageRule(self._screen_round, self._take_heartbeat),
            "join": MessageRule(self._screen_request, self._take_request),
            "evidence": MessageRule(self._screen_evidence, self._take_evidence),
            **{
                kind: self._rule_of(feature) for feature in parts.features for kind in feature.kinds
            },
        }

    def screen(self, received: MessageReceived, now: float) -> None:
        """Check a message as far as possible before it is forwarded. Raises `ProtocolError`."""
        sender, parts = received.envelope.sender, self._parts
        if len(received.envelope.body) > _STRANGER_BYTES and not self._may_send_long(sender):
            # Decoding a long message takes us longer than sending it takes the sender.
            raise ProtocolError("not_member", "a long message from a non-member")
        message = received.message
        self.rules[received.envelope.kind].screen(sender, message, now)
        if isinstance(message, Proposal):
            record = message.record
            if (record.round, record.parent) == (self._view.round, parts.ledger.head):
                # A proposal is long: only the leader's is worth passing on.
                parts.round.consensus.check_proposal(sender, message.slot, record)

    def receive(self, received: MessageReceived, now: float) -> list[Effect] | None:
        """Screen a message and handle it; None if it is stored already and changes nothing: answers to
        sync requests contain many such. Raises `ProtocolError`."""
        self.screen(received, now)
        envelope, message = received.envelope, received.message
        if self._parts.messages.has(round_of(message), envelope):
            return None
        if envelope.sender != self._parts.me:
            return self.take(envelope, message, now)
        # An own message that another member has sent back.
        if not self.rules[envelope.kind].restored or round_of(message) < self._view.round:
            return []
        return [LogMessage(envelope), *self.take(envelope, message, now)]

    def take(self, envelope: Envelope, message: Message, now: float) -> list[Effect]:
        """Handle a screened message, or an own one. Raises `ProtocolError` if it is refused."""
        self._parts.round.note_activity(envelope.sender, message, now)
        return self.rules[envelope.kind].handle(envelope, message, now)

    def restore(self, envelopes: Iterable[Envelope], now: float) -> None:
        """Take in again what this member signed before a restart (`Member.restore`)."""
        for envelope in envelopes:
            message = MessageReceived(envelope).message
            own = envelope.sender == self._parts.me and not isinstance(message, Leave)
            with contextlib.suppress(ProtocolError):
                if own or isinstance(message, Proposal):
                    self.take(envelope, message, now)
                elif isinstance(message, Ballot) and message.round >= self._view.round:
                    # Not `take`: an old ballot does not show that its sender is alive.
                    if message.round == self._view.round:
                        self._enter(envelope, message, now)
                    self._parts.messages.put(message.round, envelope, MEMBER_BYTES)

    def begin_round(self, now: float) -> list[Effect]:
        """Drop the messages of earlier rounds, and handle those received for the round at the tip."""
        messages, effects = self._parts.messages, list[Effect]()
        messages.forget_before(self._view.round)
        for envelope in messages.of_round(self._view.round):
            try:
                effects += self._enter(envelope, MessageReceived(envelope).message, now)
            except ProtocolError:
                # The message could not be checked before this round was known. It is invalid: drop it.
                continue
        return effects

    def start_over(self, now: float) -> None:
        """Drop all messages of the chain that was left, and take in this member's own of this one."""
        self._parts.messages.clear()
        self.restore(list(self._parts.own_messages), now)

    # Screening

    def _rule_of(self, feature: MemberPart) -> MessageRule:
        def screen(sender: PeerId, message: Any, now: float) -> None:
            feature.screen(sender, message, self._parts.ledger)

        def handle(envelope: Envelope, message: Any, now: float) -> list[Effect]:
            feature.put(envelope.sender, message, envelope.signature)
            return []

        return MessageRule(screen, handle)

    def _may_send_long(self, sender: PeerId) -> bool:
        """Whether a long message of this peer may be useful. A peer that asks for admission may already
        be a member by a record that is not known here."""
        return self._parts.ledger.has_been_member(sender) or self._parts.joins.has(sender)

    def _screen_round(self, sender: PeerId, message: Message, now: float) -> None:
        parts = self._parts
        if round_of(message) > len(parts.ledger) + FUTURE_ROUNDS:
            # This member is far behind, but the sender is certainly alive.
            parts.liveness.note_message(sender, now)
        parts.lag_detector.screen(sender, message, parts.ledger, parts.joins.has(sender))

    def _screen_request(self, sender: PeerId, request: JoinRequest, now: float) -> None:
        ledger = self._parts.ledger
        if not invited(sender, request, self._parts.manifest, ledger.verify):
            raise ProtocolError("not_member", "a join request without an invitation")
        if sender in ledger.membership(len(ledger)).expelled:
            raise ProtocolError("not_member", "a join request by an expelled peer")

    def _screen_evidence(self, sender: PeerId, evidence: Evidence, now: float) -> None:
        ledger = self._parts.ledger
        current = ledger.membership(len(ledger))
        if sender not in current and sender not in ledger.membership(max(0, len(ledger) - 1)):
            raise ProtocolError("not_member", "evidence sent by a non-member")
        if evidence.round > len(ledger):
            self._parts.lag_detector.note_behind()
            raise ProtocolError(
                "other_round", f"evidence of round {evidence.round} in round {len(ledger)}"
            )
        # One proof is enough, and checking one takes time.
        if self._parts.accusations.wants(evidence.peer) and evidence.peer not in current.expelled:
            check_evidence(evidence, ledger, ledger.verify)

    # Handling

    def _take_heartbeat(self, envelope: Envelope, beat: Heartbeat, now: float) -> list[Effect]:
        if beat.round > self._view.round:
            self._parts.lag_detector.note_behind()
        self._parts.liveness.note_heartbeat(envelope.sender, beat, now)
        return []

    def _take_request(self, envelope: Envelope, request: JoinRequest, now: float) -> list[Effect]:
        self._parts.joins.put(envelope.sender, request, envelope.signature, now)
        return []

    def _take_evidence(self, envelope: Envelope, evidence: Evidence, now: float) -> list[Effect]:
        self._parts.accusations.put(evidence, envelope)
        return []

    def _take_round_message(self, envelope: Envelope, message: Message, now: float) -> list[Effect]:
        """Handle a message of the round at the tip; keep it, or one of a later round."""
        parts, round_, tip = self._parts, round_of(message), self._view.round
        if envelope.sender == parts.me:
            parts.own_messages.setdefault(envelope, None)
            if isinstance(message, Announcement):
                parts.replica.note_own(round_, message.update)
        past = round_ < tip
        if past and isinstance(message, Announcement):
            # Not noted while this member catches up: then all announcements are late.
            return [Note("late", round_, envelope.sender)] if self._view.at_tip else []
        if parts.messages.has(round_, envelope) or (past and not isinstance(message, Leave)):
            return []
        # This raises if the current round refuses the message, which then is neither kept nor forwarded.
        effects = self._enter(envelope, message, now) if round_ <= tip else []
        if past:
            return effects
        # Only a new message proves that its sender is alive: peers repeat messages of dead ones.
        parts.liveness.note_message(envelope.sender, now)
        known = envelope.sender == parts.me or envelope.sender in parts.round.membership
        parts.messages.put(round_, envelope, MEMBER_BYTES if known else NEWCOMER_BYTES)
        if round_ > tip:
            parts.lag_detector.note_behind()
        return effects

    def _enter(self, envelope: Envelope, message: Message, now: float) -> list[Effect]:
        """Pass a message of the round at the tip to it, or a leave sent in the round before."""
        parts = self._parts
        if parent_of(message) not in (None, parts.ledger.parent(round_of(message))):
            parts.lag_detector.note_behind()
            parts.lag_detector.note_misfit(envelope.sender, message, parts.ledger)
            raise ProtocolError("wrong_parent", "a message of another chain")
        parts.round.take(envelope, message, parts.held_updates.held, now)
        if isinstance(message, Announcement) and parts.replica.is_near(parts.ledger):
            return parts.held_updates.fetch(
                self._view.round, envelope.sender, message.update, message.size
            )
        return []
