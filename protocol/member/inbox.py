"""What arrives: which messages are let in and passed on, and which are kept for later.

A message is screened before it is forwarded to anybody, by what can be known of it at that time: its
decoding, its round, whether its sender has a say there. The round decides whether it has a use for it.
"""

from __future__ import annotations

from ...crypto.envelope import Envelope
from ...crypto.identity import PeerId
from ..chain.admissions import invited
from ..chain.ledger import Ledger
from ..wire.bounded import Bounded
from ..wire.errors import ProtocolError
from ..wire.manifest import Manifest
from ..wire.messages import (
    Check,
    Evidence,
    JoinRequest,
    Message,
    Recheck,
    decode_message,
    round_of,
)
from .divergence import Divergence
from .looking import Looking
from .mailbox import FUTURE_ROUNDS, MEMBER_BYTES, NEWCOMER_BYTES, Mailbox
from .presence import Presence
from .proposing import Accusations, JoinRequests

# Longer than anything but proposals and evidence, which take a member.
_STRANGER_BYTES = 4096
# Those of dozens of rounds. A member that comes back to a chain after more finds its rounds decided.
_OWN_WORDS = 512


class Inbox:
    """One member's view of what others say; all that is kept of it is bounded."""

    def __init__(
        self,
        manifest: Manifest,
        presence: Presence,
        divergence: Divergence,
        joins: JoinRequests,
        accusations: Accusations,
        looking: Looking,
    ) -> None:
        """The others are the member's own; they know who is here, elsewhere, asks, is accused or was
        looked at."""
        self._mailbox = Mailbox()
        self._own: Bounded[Envelope, None] = Bounded(_OWN_WORDS)
        self._joins = joins
        self._accusations = accusations
        self._looking = looking
        self._divergence = divergence
        self._manifest = manifest
        self._presence = presence

    def screen(self, envelope: Envelope, ledger: Ledger, now: float) -> Message:
        """Decode a message and check that it has a place in these rounds. Raises `ProtocolError`."""
        sender = envelope.sender
        if len(envelope.body) > _STRANGER_BYTES and not self._may_say_much(sender, ledger):
            # To decode it takes longer than to send it.
            raise ProtocolError("not_member", "a long message from somebody who is no member")
        message = decode_message(envelope)
        if isinstance(message, JoinRequest):
            self._screen_request(sender, message, ledger)
        elif isinstance(message, Evidence):
            self._screen_evidence(sender, message, ledger)
        elif isinstance(message, (Check, Recheck)):
            self._looking.screen(sender, message, ledger)
        else:
            if round_of(message) > len(ledger) + FUTURE_ROUNDS:
                # We are far behind, but so much is certain: it lives.
                self._presence.heard(sender, now)
            self._divergence.screen(sender, message, ledger, self._joins.has(sender))
        return message

    def has(self, envelope: Envelope, round: int) -> bool:
        """Whether this very message about `round` is kept."""
        return self._mailbox.has(round, envelope)

    def keep(self, envelope: Envelope, round: int, *, member: bool) -> None:
        """Keep a message about `round`, within the bound for its sender, a `member` or not."""
        self._mailbox.put(round, envelope, MEMBER_BYTES if member else NEWCOMER_BYTES)

    def enter(self, round: int) -> list[Envelope]:
        """`round` has come: what was said about it so far. What was said before is forgotten."""
        self._mailbox.forget_before(round)
        return self._mailbox.of_round(round)

    def stand_by(self, envelope: Envelope, me: PeerId) -> None:
        """Remember an own word: `me` may leave the chain that it is about, and come back."""
        if envelope.sender == me and envelope not in self._own:
            self._own[envelope] = None

    def start_over(self) -> list[Envelope]:
        """Forget what was said about the chain that is left; returns what this member stands by."""
        self._mailbox = Mailbox()
        return list(self._own)

    def messages(self, round: int, ledger: Ledger) -> list[Envelope]:
        """The round's signed messages, for a peer that asks what it missed."""
        said = self._mailbox.of_round(round)
        return [*self._accusations.envelopes(), *said] if round == len(ledger) else said

    def _may_say_much(self, sender: PeerId, ledger: Ledger) -> bool:
        """Whether a long message of this peer may be of use. A peer that asks for admission may be a
        member by a record that we have not seen."""
        return ledger.has_been_member(sender) or self._joins.has(sender)

    def _screen_request(self, sender: PeerId, request: JoinRequest, ledger: Ledger) -> None:
        if not invited(sender, request, self._manifest, ledger.verify):
            raise ProtocolError("not_member", "asks for admission without an invitation")
        if sender in ledger.membership(len(ledger)).expelled:
            raise ProtocolError("not_member", "asks for admission and was expelled")

    def _screen_evidence(self, sender: PeerId, evidence: Evidence, ledger: Ledger) -> None:
        current = ledger.membership(len(ledger))
        if sender not in current and sender not in ledger.membership(max(0, len(ledger) - 1)):
            raise ProtocolError("not_member", "an accusation by somebody who is no member")
        if evidence.round > len(ledger):
            self._divergence.behind()
            raise ProtocolError("other_round", f"evidence of {evidence.round} at {len(ledger)}")
        # One proof is enough, and to check one takes time.
        if self._accusations.wants(evidence.peer) and evidence.peer not in current.expelled:
            ledger.check_evidence(evidence)
