"""A limit on what costs the processor: so many at once, so many a second, and what else is earned."""

from __future__ import annotations

import trio


class Patience:
    """A bucket of turns; a peer that has used them up waits, and keeps nobody else waiting."""

    def __init__(self, per_second: float, at_once: float) -> None:
        self._per_second = per_second
        self._at_once = at_once
        self._left = at_once
        self._then = trio.current_time()

    def earn(self, turns: float) -> None:
        """Add turns."""
        self._left = min(self._at_once, self._left + turns)

    async def spend(self, turns: float = 1.0) -> None:
        """Take turns; returns when there are enough."""
        now = trio.current_time()
        self.earn((now - self._then) * self._per_second)
        self._then = now
        self._left -= turns
        if self._left < 0.0:
            await trio.sleep(-self._left / self._per_second)
