"""How long to wait before another try: twice as long after each failure, up to a longest time.

Time is an argument. So is chance, as the part of the pause that is waited: peers that failed together
should not come back together.
"""

from __future__ import annotations

from typing import TypeVar

from .bounded import Bounded

K = TypeVar("K")

_MOST_KEYS = 4096


class Pause:
    """The pause between the tries at one thing, in seconds."""

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest = first, longest
        self.seconds = first
        """What is waited after the next failure."""

    def after_failure(self) -> float:
        """How long to wait now; twice as long the next time."""
        pause, self.seconds = self.seconds, min(2 * self.seconds, self._longest)
        return pause

    def reset(self) -> None:
        """It succeeded: begin with the first pause again."""
        self.seconds = self._first


class Backoff(Bounded[K, tuple[float, float]]):
    """The pauses of many: by key, until when it is left alone and how long after the next failure."""

    def __init__(self, first: float, longest: float, most: int = _MOST_KEYS) -> None:
        super().__init__(most)
        self.first, self._longest = first, longest

    def failed(self, key: K, now: float, part: float = 1.0) -> None:
        """Leave `key` alone from `now` on for this part of its pause, twice as long the next time."""
        pause = self[key][1] if key in self else self.first
        self[key] = (now + part * pause, min(2 * pause, self._longest))

    def put_off(self, key: K, until: float) -> None:
        """Leave `key` alone until then, with the first pause after its next failure."""
        self[key] = (until, self.first)

    def due(self, key: K) -> float:
        """When the next try is; of what never failed, at any time."""
        return self[key][0] if key in self else float("-inf")

    def rests(self, key: K, now: float) -> bool:
        """Whether `key` is to be left alone at present."""
        return now < self.due(key)
