"""One provider at work on one blob, and whether somebody else should have a go at it, too."""

from __future__ import annotations

import trio

from ....crypto.identity import PeerId

PATIENCE = 4.0
"""A provider that takes this many times as long as usual has earned a competitor."""
# Bytes come in pieces of so many.
_PIECE_BYTES = 1 << 16


class Attempt:
    """One provider at work on one blob."""

    def __init__(
        self, peer: PeerId, now: float, *, stall: float, whole: float, size: int, is_relay: bool
    ) -> None:
        self.peer = peer
        self.is_relay = is_relay
        self.started = now
        self.first_byte: float | None = None
        self.received = 0
        # A relay waits for the author itself.
        self.ended = is_relay
        """Whether it ended for another reason than that the peer sends nothing."""
        self._size = size
        self._heard = now
        self._stall = stall
        self._whole = whole

    def note(self, size: int) -> None:
        """So many bytes are here."""
        self._heard = trio.current_time()
        self.received = size
        if self.first_byte is None:
            self.first_byte = self._heard

    def excuse(self, seconds: float) -> None:
        """It was not the peer who slept."""
        self.started += seconds
        self._heard += seconds

    def overdue(self, now: float, usual: float) -> bool:
        """Whether somebody else should have a go at it, too; `usual` is what others bring, in bytes a
        second."""
        stall = max(self._stall, PATIENCE * _PIECE_BYTES / usual)
        whole = max(self._whole, PATIENCE * self._size / usual)
        return now - self._heard > stall or now - self.started > whole
