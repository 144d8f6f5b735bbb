"""One provider's attempt to deliver one blob, and when to start a second attempt."""

from __future__ import annotations

import trio

from ....crypto.identity import PeerId

PATIENCE = 4.0
"""A provider that takes this many times as long as usual gets a competitor."""
# Bytes arrive in pieces of this size.
_PIECE_BYTES = 1 << 16


class TransferAttempt:
    """One provider's attempt to deliver one blob."""

    def __init__(
        self, peer: PeerId, now: float, *, stall: float, whole: float, size: int, is_relay: bool
    ) -> None:
        self.peer = peer
        self.is_relay = is_relay
        self.started = now
        self.first_byte: float | None = None
        self.received = 0
        # True for a relay from the start, since it has to wait for the author itself.
        self.ended = is_relay
        """Whether the attempt ended for another reason than the peer's silence."""
        self._size = size
        self._heard = now
        self._stall = stall
        self._whole = whole

    def note(self, size: int) -> None:
        """Note that `size` bytes have arrived by now."""
        self._heard = trio.current_time()
        self.received = size
        if self.first_byte is None:
            self.first_byte = self._heard

    def excuse(self, seconds: float) -> None:
        """Discount `seconds` during which our own process did not run."""
        self.started += seconds
        self._heard += seconds

    def overdue(self, now: float, usual: float) -> bool:
        """Whether another provider should be asked as well; `usual` is the usual rate in bytes per
        second."""
        stall = max(self._stall, PATIENCE * _PIECE_BYTES / usual)
        whole = max(self._whole, PATIENCE * self._size / usual)
        return now - self._heard > stall or now - self.started > whole
