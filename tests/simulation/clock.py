"""Virtual time: a queue of what is to happen, in one thread.

Two things due at the same instant happen in the order in which they were put down, so a run depends on
nothing but what is put into it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

MOST_STEPS = 100_000
"""So many things within a second are a circle: whoever answers answers stops the time for all. Twenty
times what the busiest swarm does in which three of ten flood the others."""


class Standstill(AssertionError):
    """Things happen without end, and the time hardly goes on."""


class Clock:
    """Seconds of virtual time, and what happens when."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        """How many things have happened."""
        self._queue: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._count = 0
        self._second = 0.0
        self._steps = 0

    def at(self, when: float, act: Callable[..., object], *arguments: Any) -> None:
        """Let `act(*arguments)` happen at a time, which must not be past."""
        self._count += 1
        heapq.heappush(self._queue, (when, self._count, act, arguments))

    def after(self, delay: float, act: Callable[..., object], *arguments: Any) -> None:
        """Let it happen in `delay` seconds."""
        self.at(self.now + delay, act, *arguments)

    @property
    def next(self) -> float:
        """When something happens next; infinity if nothing ever will."""
        return self._queue[0][0] if self._queue else float("inf")

    def step(self) -> None:
        """Let the next thing happen. Raises `Standstill` if too much happens in a second."""
        self.now, _, act, arguments = heapq.heappop(self._queue)
        self.events += 1
        self._steps += 1
        if self.now >= self._second + 1.0:
            self._second, self._steps = self.now, 0
        elif self._steps > MOST_STEPS:
            raise Standstill(
                f"{self._steps} things since {self._second:.3f} s, now {self.now:.3f} s"
            )
        act(*arguments)
