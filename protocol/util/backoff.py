"""Exponential backoff: the pause doubles after each failure, up to a maximum.

Time is an argument. So is randomness, as the fraction of the pause to wait, so that peers that failed
together do not all retry at once.
"""

from __future__ import annotations

from typing import TypeVar

from .bounded_dict import BoundedTable

K = TypeVar("K")

_MOST_KEYS = 4096


class BackoffTimer:
    """Pause between the tries of one operation, in seconds."""

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest = first, longest
        self.seconds = first
        """The pause after the next failure."""

    def after_failure(self) -> float:
        """Return the pause to wait now, and double the next one."""
        pause, self.seconds = self.seconds, min(2 * self.seconds, self._longest)
        return pause

    def reset(self) -> None:
        """Return to the first pause after a success."""
        self.seconds = self._first


class Backoff(BoundedTable[K, tuple[float, float]]):
    """Pauses of many keys: for each, the end of its pause and the length of the next one."""

    def __init__(self, first: float, longest: float, most: int = _MOST_KEYS) -> None:
        super().__init__(most)
        self.first, self._longest = first, longest

    def failed(self, key: K, now: float, part: float = 1.0) -> None:
        """Pause `key` from `now` for `part` of its pause, and double the next one."""
        pause = self[key][1] if key in self else self.first
        self[key] = (now + part * pause, min(2 * pause, self._longest))

    def set_due(self, key: K, time: float) -> None:
        """Set the time of the next try of `key`; after its next failure the first pause applies."""
        self[key] = (time, self.first)

    def due(self, key: K) -> float:
        """Return the time of the next try; minus infinity for a key that never failed."""
        return self[key][0] if key in self else float("-inf")

    def rests(self, key: K, now: float) -> bool:
        """Whether `key` is pausing."""
        return now < self.due(key)
