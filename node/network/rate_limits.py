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
# Gossip beyond the limit delays bulk data by this at most: requests time out after ten seconds, and a
# debt without bound would outlast the flood that caused it by hours.
_MOST_OWED_SECONDS = 5.0


class Rate:
    """A limit in bytes per second, or none; shared by all transfers in one direction of a line."""

    def __init__(self, bytes_per_second: float | None = None) -> None:
        self._limit = bytes_per_second
        # Bytes counted so far, and how many of them the line has had time for at `_updated_at`, on
        # trio's clock. After a pause the latter is ahead by a burst.
        self._counted = 0.0
        self._passed = 0.0
        self._updated_at = float("-inf")
        # Set, and replaced, when the limit changes.
        self._changed = trio.Event()

    @property
    def limit(self) -> float | None:
        """Bytes per second; None: unlimited. It may be changed at any time, also for those who wait."""
        return self._limit

    @limit.setter
    def limit(self, bytes_per_second: float | None) -> None:
        if bytes_per_second == self._limit:
            return
        self._update()
        self._limit = bytes_per_second
        if bytes_per_second is None:
            self._passed = self._counted
        self._changed.set()
        self._changed = trio.Event()

    @property
    def is_limited(self) -> bool:
        """Whether a transfer may ever have to wait."""
        return self._limit is not None

    def piece(self, most: int) -> int:
        """Return how many bytes, at most `most`, to send at once."""
        if self._limit is None:
            return most
        return max(1, min(most, int(self._limit * _PIECE_SECONDS)))

    def note(self, size: int) -> None:
        """Count bytes that did not wait."""
        if self._limit is not None:
            self._update()
            most = self._passed + self._limit * _MOST_OWED_SECONDS
            self._counted = max(self._counted, min(self._counted + size, most))

    async def spend(self, size: int) -> None:
        """Count bytes, and wait until everything spent so far fits the limit. First come, first
        served."""
        if self._limit is None:
            return
        self._update()
        self._counted += size
        end = self._counted
        while self._limit is not None:
            self._update()
            with trio.move_on_after(max(0.0, end - self._passed) / self._limit) as waiting:
                await self._changed.wait()
            if waiting.cancelled_caught:
                return

    def _update(self) -> None:
        if self._limit is not None:
            now = trio.current_time()
            self._passed = min(
                self._passed + (now - self._updated_at) * self._limit,
                self._counted + _BURST_SECONDS * self._limit,
            )
            self._updated_at = now
