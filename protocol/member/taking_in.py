"""Taking in what somebody answered: what to hand to the member, in which order, and when to stop.

Whoever answers has checked the signatures of what it hands on, so the first that does not hold ends the
answer and is the answerer's fault; an entry that cannot be read is so, too. What the member refuses is
not: an entry may be of another chain, a message about a round that is over. But after such an entry
nothing holds that follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from ...crypto.envelope import Envelope, EnvelopeError
from ...crypto.identity import PeerId
from ..chain.comparing import Blame
from ..wire.errors import ProtocolError
from ..wire.messages import Decided
from .inputs import Heard, Learned

W = TypeVar("W")


class TakingIn(Generic[W]):
    """One answer on its way into the member."""

    def __init__(
        self,
        peer: PeerId,
        entries: Iterable[Decided],
        words: Iterable[W],
        opened: Callable[[W], Envelope],
    ) -> None:
        """What `peer` answered: `entries` may raise `ProtocolError` for what is none; `opened` checks a
        message and raises `EnvelopeError`."""
        self.blame: Blame | None = None
        """What the answerer is to be blamed for, once all is taken in."""
        self.all_held = False
        """Whether it was listened to up to its end."""
        self._peer = peer
        self._entries = iter(entries)
        self._words = iter(words)
        self._opened = opened
        self._in_entries = True
        self._ended = False

    def next_input(self) -> Learned | Heard | None:
        """What to hand to the member now; None if there is no more, or the rest is not listened to."""
        if self._ended:
            return None
        try:
            if self._in_entries:
                for decided in self._entries:
                    return Learned(decided)
                self._in_entries = False
            for word in self._words:
                return Heard(self._opened(word))
        except (ProtocolError, EnvelopeError) as error:
            self.blame, self._ended = Blame(self._peer, error.reason, str(error)), True
            return None
        self.all_held = self._ended = True
        return None

    def refused(self) -> None:
        """The member refused what it was handed last."""
        self._ended |= self._in_entries
