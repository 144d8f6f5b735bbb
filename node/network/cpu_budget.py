"""A token bucket for work that costs CPU time: a burst, a rate, and tokens that callers may add."""

from __future__ import annotations

import trio

from ...protocol.util.token_bucket import TokenRate


class CpuBudget:
    """A token bucket. A caller that finds it empty waits; callers are served in order."""

    def __init__(self, allowance: TokenRate) -> None:
        self._allowance = allowance
        self._left = allowance.at_once
        self._then = trio.current_time()

    def earn(self, turns: float) -> None:
        """Add `turns` tokens, up to the size of a burst."""
        self._left = min(self._allowance.at_once, self._left + turns)

    async def spend(self, turns: float = 1.0) -> None:
        """Take `turns` tokens; return when there are enough."""
        now = trio.current_time()
        self._left = self._allowance.grown(self._left, now - self._then) - turns
        self._then = now
        if self._left < 0.0:
            await trio.sleep(-self._left / self._allowance.per_second)
