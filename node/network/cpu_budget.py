"""A token bucket for work that costs CPU time: a burst, a rate, and tokens that callers may add."""

from __future__ import annotations

import trio

from ...protocol.util.token_bucket import TokenRate


class CpuBudget:
    """A token bucket. A caller that finds it empty waits; callers are served in order."""

    def __init__(self, allowance: TokenRate) -> None:
        self._allowance = allowance
        self._balance = allowance.at_once
        self._updated_at = trio.current_time()

    def earn(self, tokens: float) -> None:
        """Add tokens, up to the size of a burst."""
        self._balance = min(self._allowance.at_once, self._balance + tokens)

    async def spend(self, tokens: float = 1.0) -> None:
        """Take tokens; return when there are enough."""
        now = trio.current_time()
        self._balance = self._allowance.grown(self._balance, now - self._updated_at) - tokens
        self._updated_at = now
        if self._balance < 0.0:
            await trio.sleep(-self._balance / self._allowance.per_second)
