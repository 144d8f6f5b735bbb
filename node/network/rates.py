"""Limits on the bytes a second that go over a line: what a volunteer shares and no more.

Bulk (blobs, ledgers) waits until there is room for it. Gossip, which is small and urgent, does not
wait; what it takes, bulk does without.
"""

from __future__ import annotations

import trio

# What may go at once after a pause. Short, so that a video call beside it hardly notices.
_BURST_SECONDS = 0.1
# A piece takes this long at the limit: the other end, which counts silence, sees the bytes flow.
_PIECE_SECONDS = 0.125


class Rate:
    """So many bytes a second, or no limit; shared by all who send (or receive) over one line."""

    def __init__(self, bytes_per_second: float | None = None) -> None:
        self.limit = bytes_per_second
        """Bytes a second; None: no limit. It may be changed at any time."""
        # Until when, on trio's clock, what was spent so far keeps the line busy.
        self._busy_until = float("-inf")

    @property
    def is_limited(self) -> bool:
        """Whether anybody ever has to wait."""
        return self.limit is not None

    def piece(self, most: int) -> int:
        """How many bytes, `most` at most, should be spent at once."""
        return most if self.limit is None else max(1, min(most, int(self.limit * _PIECE_SECONDS)))

    def note(self, size: int) -> None:
        """Count bytes that did not wait."""
        if self.limit is not None:
            begin = max(self._busy_until, trio.current_time() - _BURST_SECONDS)
            self._busy_until = begin + size / self.limit

    async def spend(self, size: int) -> None:
        """Count bytes, and wait until all that was spent so far fits. First come, first served."""
        self.note(size)
        if self.limit is not None:
            await trio.sleep(max(0.0, self._busy_until - trio.current_time()))
