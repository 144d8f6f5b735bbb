"""Virtual time: a queue of scheduled events, in one thread.

Two events at the same instant happen in the order in which they were scheduled, so a run depends only on
its events.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

MOST_STEPS = 100_000
"""More events within a second are taken for an endless loop: members that answer each other's answers
stop the time for all. It is twenty times what the busiest swarm does in which three of ten flood the
others."""


class Standstill(AssertionError):
    """Events follow each other without end while the time hardly advances."""


class Clock:
    """Virtual time in seconds, and the scheduled events."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        """Number of events so far."""
        self._queue: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._count = 0
        self._second = 0.0
        self._steps = 0

    def at(self, when: float, act: Callable[..., object], *arguments: Any) -> None:
        """Schedule `act(*arguments)` at a time, which must not be past."""
        self._count += 1
        heapq.heappush(self._queue, (when, self._count, act, arguments))

    def after(self, delay: float, act: Callable[..., object], *arguments: Any) -> None:
        """Schedule it in `delay` seconds."""
        self.at(self.now + delay, act, *arguments)

    @property
    def next(self) -> float:
        """The time of the next event; infinity if there is none."""
        return self._queue[0][0] if self._queue else float("inf")

    def step(self) -> None:
        """Run the next event. Raises `Standstill` for too many events within a second."""
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
