"""Ingest of a sync answer: what to pass to the member, in which order, and when to stop.

The answering peer has checked the signatures of what it passes on, so the first invalid signature ends
the answer and is that peer's fault; so is an unreadable entry. If the member refuses an entry or a
message, it is not that peer's fault: the entry may belong to another chain, the message to a round that
is over. But nothing after a refused entry can be valid, so the rest is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from ...crypto.envelope import Envelope, EnvelopeError
from ...crypto.identity import PeerId
from ..chain.fork_search import PeerFault
from ..wire.errors import ProtocolError
from ..wire.messages import Decided
from .inputs import EntryReceived, MessageReceived

M = TypeVar("M")


class AnswerIngest(Generic[M]):
    """One answer being passed to the member."""

    def __init__(
        self,
        peer: PeerId,
        entries: Iterable[Decided],
        messages: Iterable[M],
        open_message: Callable[[M], Envelope],
    ) -> None:
        """`peer` sent the answer: ledger `entries` and encoded `messages`. Iterating `entries` may raise
        `ProtocolError` for an unreadable one. `open_message` checks one of `messages` and returns its
        envelope, or raises `EnvelopeError`."""
        self.blame: PeerFault | None = None
        """What the answering peer is to blame for, once everything is passed in."""
        self.all_held = False
        """Whether the answer was processed up to its end."""
        self._peer = peer
        self._entries = iter(entries)
        self._messages = iter(messages)
        self._open_message = open_message
        self._in_entries = True
        self._ended = False

    def next_input(self) -> EntryReceived | MessageReceived | None:
        """Return what to pass to the member next; None at the end, or if the rest is ignored."""
        if self._ended:
            return None
        try:
            if self._in_entries:
                for decided in self._entries:
                    return EntryReceived(decided)
                self._in_entries = False
            for message in self._messages:
                return MessageReceived(self._open_message(message))
        except (ProtocolError, EnvelopeError) as error:
            self.blame, self._ended = PeerFault(self._peer, error.reason, str(error)), True
            return None
        self.all_held = self._ended = True
        return None

    def refused(self) -> None:
        """Note that the member refused the last input."""
        self._ended |= self._in_entries
