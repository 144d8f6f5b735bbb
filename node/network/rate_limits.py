"""Bandwidth limits: how much of an internet connection its owner lets the node use.

Bulk data (blobs, ledgers) waits until there is room for it. Gossip, which is small and urgent, does not
wait; its bytes are charged to the same limit, so bulk data gets less.
"""

from __future__ import annotations

import trio

# How many seconds' worth of bytes may follow at once after a pause: little, so that a video call in
# parallel hardly notices.
_BURST_SECONDS = 0.1
# One piece takes this long at the limit, so that the other end, which times out on silence, sees
# progress.
_PIECE_SECONDS = 0.125


class Rate:
    """A limit in bytes per second, or none; shared by all transfers in one direction of a line."""

    def __init__(self, bytes_per_second: float | None = None) -> None:
        self.limit = bytes_per_second
        """Bytes per second; None: unlimited. It may be changed at any time."""
        # Until when, on trio's clock, the bytes spent so far occupy the line.
        self._busy_until = float("-inf")

    @property
    def is_limited(self) -> bool:
        """Whether a transfer may ever have to wait."""
        return self.limit is not None

    def piece(self, most: int) -> int:
        """Return how many bytes, at most `most`, to send at once."""
        return most if self.limit is None else max(1, min(most, int(self.limit * _PIECE_SECONDS)))

    def note(self, size: int) -> None:
        """Count bytes that did not wait."""
        if self.limit is not None:
            begin = max(self._busy_until, trio.current_time() - _BURST_SECONDS)
            self._busy_until = begin + size / self.limit

    async def spend(self, size: int) -> None:
        """Count bytes, and wait until everything spent so far fits the limit. First come, first
        served."""
        self.note(size)
        if self.limit is not None:
            await trio.sleep(max(0.0, self._busy_until - trio.current_time()))
