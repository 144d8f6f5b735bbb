"""Message filter: which messages are accepted and forwarded, and which are kept for later.

A message is screened before it is forwarded, by what is known at that time: its encoding, its round, and
whether its sender may send messages for that round. The round then decides whether it uses the message.
"""

from __future__ import annotations

from ...crypto.envelope import Envelope
from ...crypto.identity import PeerId
from ..chain.admissions import invited
from ..chain.evidence import check_evidence
from ..chain.ledger import Ledger
from ..util.bounded_dict import BoundedTable
from ..wire.errors import ProtocolError
from ..wire.manifest import Manifest
from ..wire.messages import (
    AuditMessage,
    Evidence,
    JoinRequest,
    Message,
    ReauditMessage,
    decode_message,
    round_of,
)
from .auditor import Auditor
from .lag_detector import LagDetector
from .liveness import Liveness
from .message_store import FUTURE_ROUNDS, MEMBER_BYTES, NEWCOMER_BYTES, MessageStore
from .proposal import Accusations, JoinRequests

# Maximum body of a message by a stranger: more than any message needs, except proposals and evidence,
# which only members may send.
_STRANGER_BYTES = 4096
# Number of own messages that are kept: enough for dozens of rounds. A member that returns to a chain
# after more rounds finds them decided.
_OWN_MESSAGES = 512


class MessageFilter:
    """One member's filter and store of received messages, bounded in every part."""

    def __init__(
        self,
        manifest: Manifest,
        liveness: Liveness,
        lag_detector: LagDetector,
        joins: JoinRequests,
        accusations: Accusations,
        auditor: Auditor,
    ) -> None:
        """All arguments except `manifest` are parts of the member. They know which peers are present,
        are on another chain, ask for admission, are accused, or were audited."""
        self._store = MessageStore()
        self._own: BoundedTable[Envelope, None] = BoundedTable(_OWN_MESSAGES)
        self._joins = joins
        self._accusations = accusations
        self._auditor = auditor
        self._lag_detector = lag_detector
        self._manifest = manifest
        self._liveness = liveness

    def screen(self, envelope: Envelope, ledger: Ledger, now: float) -> Message:
        """Decode a message and check that it fits the current rounds. Raises `ProtocolError`."""
        sender = envelope.sender
        if len(envelope.body) > _STRANGER_BYTES and not self._is_author_allowed(sender, ledger):
            # Decoding a long message takes us longer than sending it takes the sender.
            raise ProtocolError("not_member", "a long message from a non-member")
        message = decode_message(envelope)
        if isinstance(message, JoinRequest):
            self._screen_request(sender, message, ledger)
        elif isinstance(message, Evidence):
            self._screen_evidence(sender, message, ledger)
        elif isinstance(message, (AuditMessage, ReauditMessage)):
            self._auditor.screen(sender, message, ledger)
        else:
            if round_of(message) > len(ledger) + FUTURE_ROUNDS:
                # This member is far behind, but the sender is certainly alive.
                self._liveness.note_message(sender, now)
            self._lag_detector.screen(sender, message, ledger, self._joins.has(sender))
        return message

    def has(self, envelope: Envelope, round: int) -> bool:
        """Whether this very message about `round` is stored."""
        return self._store.has(round, envelope)

    def keep(self, envelope: Envelope, round: int, *, member: bool) -> None:
        """Store a message about `round`, within the bound for its sender, a `member` or not."""
        self._store.put(round, envelope, MEMBER_BYTES if member else NEWCOMER_BYTES)

    def enter(self, round: int) -> list[Envelope]:
        """Enter `round`: return the messages already received for it, and drop earlier rounds'."""
        self._store.forget_before(round)
        return self._store.of_round(round)

    def stand_by(self, envelope: Envelope, me: PeerId) -> None:
        """Remember an own message: `me` may switch to another chain, and come back to this one."""
        if envelope.sender == me and envelope not in self._own:
            self._own[envelope] = None

    def start_over(self) -> list[Envelope]:
        """Drop all messages of the abandoned chain, and return this member's own."""
        self._store = MessageStore()
        return list(self._own)

    def messages(self, round: int, ledger: Ledger) -> list[Envelope]:
        """Return the round's signed messages, for a peer that asks for those it missed."""
        stored = self._store.of_round(round)
        return [*self._accusations.envelopes(), *stored] if round == len(ledger) else stored

    def _is_author_allowed(self, sender: PeerId, ledger: Ledger) -> bool:
        """Whether a long message of this peer may be useful. A peer that asks for admission may already
        be a member by a record that is not known here."""
        return ledger.has_been_member(sender) or self._joins.has(sender)

    def _screen_request(self, sender: PeerId, request: JoinRequest, ledger: Ledger) -> None:
        if not invited(sender, request, self._manifest, ledger.verify):
            raise ProtocolError("not_member", "a join request without an invitation")
        if sender in ledger.membership(len(ledger)).expelled:
            raise ProtocolError("not_member", "a join request by an expelled peer")

    def _screen_evidence(self, sender: PeerId, evidence: Evidence, ledger: Ledger) -> None:
        current = ledger.membership(len(ledger))
        if sender not in current and sender not in ledger.membership(max(0, len(ledger) - 1)):
            raise ProtocolError("not_member", "evidence sent by a non-member")
        if evidence.round > len(ledger):
            self._lag_detector.note_behind()
            raise ProtocolError(
                "other_round", f"evidence of round {evidence.round} in round {len(ledger)}"
            )
        # One proof is enough, and checking one takes time.
        if self._accusations.wants(evidence.peer) and evidence.peer not in current.expelled:
            check_evidence(evidence, ledger, ledger.verify)
