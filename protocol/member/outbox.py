"""Outbox: what this member sends. An own message takes effect here before it is published."""

from __future__ import annotations

from collections.abc import Iterable

from ..wire.encoding import encode
from ..wire.messages import Message
from .effects import Effect, Publish
from .inputs import Trained
from .local_updates import announcement_of
from .member_part import Outgoing
from .message_intake import MessageIntake
from .parts import MemberParts


class Outbox:
    """Signs this member's messages, passes them to its own intake, and publishes them."""

    def __init__(self, parts: MemberParts, intake: MessageIntake, now: float) -> None:
        self.last_sent = now
        """Time of the last message."""
        self._parts = parts
        self._intake = intake

    def send(self, kind: str, message: Message, now: float) -> list[Effect]:
        """Sign a message, handle it and publish it."""
        envelope = self._parts.sign(kind, encode(message))
        self.last_sent = now
        effects: list[Effect] = [Publish(envelope, self._intake.rules[kind].durable, message)]
        # The others decide on a request; this node does not.
        if kind != "join":
            effects += self._intake.take(envelope, message, now)
        return effects

    def send_all(self, messages: Iterable[Outgoing], now: float) -> list[Effect]:
        """Send several messages, in order."""
        return [effect for kind, message in messages for effect in self.send(kind, message, now)]

    def announce(self, made: Trained, now: float) -> list[Effect]:
        """Announce this member's update for the round at the tip, for which its parameters are
        current."""
        parts = self._parts
        ledger, fingerprint = parts.ledger, parts.replica.fingerprint
        assert fingerprint is not None  # only at the tip
        parts.held_updates.held.add(made.update)
        capacity = parts.training.capacity.stated(parts.timeouts.round_seconds)
        commitment = parts.secrets.commitment(made.round, ledger)
        announcement = announcement_of(made, ledger, fingerprint, capacity, commitment)
        effects = self.send("announcement", announcement, now)
        parts.round.collection.held(made.update, now)
        return effects
