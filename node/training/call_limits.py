"""The time limits of calls to the trainer: a trainer that hangs is treated like one that died.

A process that waits for a driver, a stopped process or a deadlock never answers and never ends. The node
would neither train nor apply a record again, and a small swarm, which needs its vote, would stop with
it. The limits are far above what a call takes, so that they end no trainer that works.

While a computer is suspended, trio's clock stands still, and so does the trainer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

import trio

from .errors import TrainerDied

P = ParamSpec("P")
T = TypeVar("T")

_SHORTEST_SECONDS = 600.0
# For opening a trainer, whose layers may be compiled then, and for calls that read or write all
# parameters on a slow disk, or compute all held-out samples: no round bounds these.
_LONG_SECONDS = 3600.0
_LONG_CALLS = frozenset(
    {
        *("enter_async_context", "load", "load_momentum", "snapshot", "save_momentum"),
        *("evaluate", "accuracy"),
    }
)
# A call may take this many times as long as the slowest of its kind so far: a share can grow, and other
# programs can take the device.
_TIMES_THE_SLOWEST = 20


class CallLimits:
    """The limits of one node's calls, which follow from how long calls have taken."""

    def __init__(self, collect_max_seconds: float) -> None:
        """`collect_max_seconds`: the swarm's maximum wait for updates; later ones do not count."""
        self._shortest = max(_SHORTEST_SECONDS, 2 * collect_max_seconds)
        # Seconds of the slowest call so far, by kind.
        self._slowest: dict[str, float] = {}

    async def call(
        self, method: Callable[P, Awaitable[T]], *arguments: P.args, **named: P.kwargs
    ) -> T:
        """Call a method and return its result. Raises `TrainerDied` if there is none in time."""
        kind, began = method.__name__, trio.current_time()
        limit = self._limit(kind)
        with trio.move_on_after(limit):
            result = await method(*arguments, **named)
            taken = trio.current_time() - began
            self._slowest[kind] = max(taken, self._slowest.get(kind, 0.0))
            return result
        raise TrainerDied(f"no answer for {limit:.0f} s")

    def _limit(self, kind: str) -> float:
        shortest = max(self._shortest, _LONG_SECONDS if kind in _LONG_CALLS else 0.0)
        return max(shortest, _TIMES_THE_SLOWEST * self._slowest.get(kind, 0.0))
