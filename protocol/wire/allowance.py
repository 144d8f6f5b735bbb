"""A limit on what somebody may use: so much at once, and so much more a second.

What the field calls a token bucket. There is no clock in it: times are on any steady one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from .bounded import Bounded

K = TypeVar("K")


@dataclass(frozen=True)
class Allowance:
    """`at_once` may be used after a pause, and `per_second` for ever."""

    at_once: float
    per_second: float

    def grown(self, left: float, seconds: float) -> float:
        """What is left `seconds` after `left` was."""
        return min(self.at_once, left + seconds * self.per_second)


class Budgets(Generic[K]):
    """What each of at most `most` has left of its allowance; to everybody else all of it is left."""

    def __init__(self, most: int) -> None:
        # What is left, as of when.
        self._left: Bounded[K, tuple[float, float]] = Bounded(most)

    def __len__(self) -> int:
        """Of how many it knows."""
        return len(self._left)

    def balance(self, key: K, allowance: Allowance, now: float) -> float:
        """What one has left."""
        left, then = self._left.get(key, (allowance.at_once, now))
        return allowance.grown(left, now - then)

    def take(self, key: K, allowance: Allowance, now: float, amount: float = 1.0) -> bool:
        """Use some of it; False, and nothing is used, if there is not so much."""
        left = self.balance(key, allowance, now)
        enough = left >= amount
        # Noted down in either case: whoever asks in vain again and again must not be forgotten, and
        # then have all of it.
        self._left[key] = (left - amount if enough else left), now
        return enough

    def give(self, key: K, allowance: Allowance, now: float, amount: float = 1.0) -> None:
        """Give some of it back."""
        left = self.balance(key, allowance, now) + amount
        self._left[key] = min(left, allowance.at_once), now
