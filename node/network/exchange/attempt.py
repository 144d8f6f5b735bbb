"""One provider's attempt to deliver one blob: when to start a second attempt, and which of two to end.

A transfer may be slow because its provider is, or because our own connection is. A second provider shows
which it is: over a slow connection both together are no faster than one, and each has half the rate. So
a competition ends as soon as both rates are known.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from ....crypto.identity import PeerId
from ..cancel_scopes import open_scope
from .partial_blobs import Beginning

PATIENCE = 4.0
"""A provider that takes this many times as long as usual gets a competitor."""
# Bytes arrive in pieces of this size.
_PIECE_BYTES = 1 << 16
# A rate counts as known after these bytes, or after this fraction of a small blob (1/16), and no sooner
# than after this time.
_KNOWN_BYTES, _KNOWN_DIVISOR = 1 << 15, 16
_KNOWN_SECONDS = 1.0
# A competitor replaces the first provider only if it is faster by this factor: transfers that share a
# connection differ by less, and a change of provider costs what the first one has sent of the blob.
_CLEARLY_FASTER = 2.0
_NOTHING = Beginning()


class TransferAttempt:
    """One provider's attempt to deliver one blob."""

    def __init__(
        self,
        peer: PeerId,
        now: float,
        *,
        stall: float,
        total: float,
        size: int,
        is_relay: bool,
        beginning: Beginning = _NOTHING,
    ) -> None:
        """`stall` and `total`: the least seconds, of silence and in total, after which a competitor
        starts; `size`: the largest size that the blob's rest after `beginning` may have, in bytes."""
        self.peer = peer
        self.beginning = beginning
        self.is_relay = is_relay
        self.started = now
        self.first_byte: float | None = None
        self.received = 0
        # True for a relay from the start: its silence proves nothing, since it has to wait for the
        # author itself.
        self.blameless = is_relay
        """Whether the attempt ended for another reason than the peer's silence."""
        self.scope = open_scope()
        """Cancels the attempt."""
        self._size = size
        self._last_received = now
        self._stall = stall
        self._total = total
        # When the latest competitor began, and how many bytes had been received before it.
        self._competitor_since, self._received_before = now, 0
        self._pieces = 0

    def note(self, size: int) -> None:
        """Note that `size` bytes have arrived by now."""
        self._last_received = trio.current_time()
        self._pieces += 1
        self.received = size
        if self.first_byte is None:
            self.first_byte = self._last_received

    def discount(self, seconds: float) -> None:
        """Discount `seconds` during which our own process did not run."""
        self.started += seconds
        self._last_received += seconds
        self._competitor_since += seconds

    def note_competitor(self, now: float) -> None:
        """Note that a competitor starts now."""
        self._competitor_since, self._received_before = now, self.received

    def continue_alone(self, now: float) -> None:
        """Note that this attempt goes on alone; the next competitor comes after twice the time so
        far."""
        self._total = max(self._total, 2 * (now - self.started))

    def is_rate_known(self, now: float) -> bool:
        """Whether the rate since the latest competitor began is known."""
        enough = min(_KNOWN_BYTES, self._size // _KNOWN_DIVISOR)
        return (
            now - self._competitor_since > _KNOWN_SECONDS
            and self.received - self._received_before >= enough
        )

    def remaining(self, now: float) -> float:
        """Return the seconds until the rest will have arrived, at the rate since the latest competitor
        began."""
        # Including the piece on its way.
        new = self.received - self._received_before + _PIECE_BYTES
        return (
            (self._size - self.received) * max(now - self._competitor_since, _KNOWN_SECONDS) / new
        )

    def is_overdue(self, now: float, typical_rate: float) -> bool:
        """Whether another provider should be asked as well; `typical_rate` in bytes per second."""
        # Over a slow connection seconds pass between the pieces of any transfer.
        pace = (self._last_received - self.started) / max(1, self._pieces)
        stall = max(self._stall, PATIENCE * _PIECE_BYTES / typical_rate, PATIENCE * pace)
        total = max(self._total, PATIENCE * self._size / typical_rate)
        return now - self._last_received > stall or now - self.started > total


def superfluous(attempts: Sequence[TransferAttempt], now: float) -> TransferAttempt | None:
    """Return which of several competing attempts, in the order of their start, to end; None while that
    is not known.

    The first one stays unless another is clearly faster.
    """
    for other in attempts[1:]:
        if other.is_rate_known(now):
            first = attempts[0]
            return first if first.remaining(now) > _CLEARLY_FASTER * other.remaining(now) else other
    return None
