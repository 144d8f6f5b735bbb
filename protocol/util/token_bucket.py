"""Token buckets. They contain no clock: times are arguments, in seconds of any steady clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from .bounded_dict import BoundedTable

K = TypeVar("K")


@dataclass(frozen=True)
class TokenRate:
    """Rate limit: a burst of up to `at_once` after a pause, and `per_second` sustained."""

    at_once: float
    per_second: float

    def grown(self, left: float, seconds: float) -> float:
        """Return the balance `seconds` after it was `left`."""
        return min(self.at_once, left + seconds * self.per_second)


class TokenBuckets(Generic[K]):
    """Balances of at most `most` keys; every other key has its full allowance."""

    def __init__(self, most: int) -> None:
        # For each key its balance, and the time of that balance.
        self._left: BoundedTable[K, tuple[float, float]] = BoundedTable(most)

    def __len__(self) -> int:
        """Return the number of keys with a balance."""
        return len(self._left)

    def balance(self, key: K, allowance: TokenRate, now: float) -> float:
        """Return the balance of one key."""
        left, then = self._left.get(key, (allowance.at_once, now))
        return allowance.grown(left, now - then)

    def take(self, key: K, allowance: TokenRate, now: float, amount: float = 1.0) -> bool:
        """Use `amount`; if the balance is too low, use nothing and return False."""
        left = self.balance(key, allowance, now)
        enough = left >= amount
        # Stored in either case: a key that keeps asking in vain must not be evicted and so get its full
        # allowance back.
        self._left[key] = (left - amount if enough else left), now
        return enough

    def give(self, key: K, allowance: TokenRate, now: float, amount: float = 1.0) -> None:
        """Return `amount` to the balance."""
        left = self.balance(key, allowance, now) + amount
        self._left[key] = min(left, allowance.at_once), now
