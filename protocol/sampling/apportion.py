"""Whole lanes in proportion to weights: D'Hondt's method, with a bound on what one may have.

Lanes are given one by one to whoever would be done with one more the soonest. No other way of dealing
out whole lanes makes the member that takes longest be done sooner; a largest remainder would, where
shares are small, let one member hold up all others. And what is taken away again in the reverse order
leaves what would have been dealt with fewer lanes (it is house monotone), so that lending a lane to
somebody slow moves no other.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import lru_cache

# Times are compared as whole numbers of this unit. Rounding may decide between two that differ by
# less than one in 2^24, the same way everywhere.
_UNIT = 1 << 64


@lru_cache(maxsize=64)
def apportion(lanes: int, weights: tuple[int, ...], most: int) -> tuple[int, ...]:
    """How many of the `lanes` go to each of the `weights`, which are at least 1; of equals the first
    comes first. Nobody has more than `most`, which must do for all lanes."""
    given = [0] * len(weights)
    left, rest = lanes, list(range(len(weights)))
    # Each gets what it has in proportion, rounded down, which it would get in any case; and whoever
    # would have more than is allowed all that is.
    while rest:
        total = sum(weights[index] for index in rest)
        full = [index for index in rest if left * weights[index] >= most * total]
        if not full:
            for index in rest:
                given[index] = left * weights[index] // total
            break
        for index in full:
            given[index] = most
        left -= most * len(full)
        rest = [index for index in rest if index not in set(full)]
    missing = lanes - sum(given)
    heap = [
        (time_of(given[i] + 1, weight), i) for i, weight in enumerate(weights) if given[i] < most
    ]
    heapq.heapify(heap)
    for _ in range(missing):
        _, index = heap[0]
        given[index] += 1
        if given[index] < most:
            heapq.heapreplace(heap, (time_of(given[index] + 1, weights[index]), index))
        else:
            heapq.heappop(heap)
    return tuple(given)


def time_of(lanes: int, weight: int) -> int:
    """How long so many lanes take, in a unit of its own."""
    return lanes * _UNIT // weight


def pace_of(given: Sequence[int], weights: Sequence[int]) -> int:
    """How long the one takes that takes longest, in the unit of `time_of`."""
    return max(time_of(lanes, weight) for lanes, weight in zip(given, weights, strict=True))


def most_lanes(lanes: int, members: int, max_share: float) -> int:
    """The most lanes for one member: `max_share` of all, or twice an equal share if that is more; with a
    `max_share` of 0, an equal share.

    With no more than an equal share for anybody nobody could have less, and in a swarm of three one that
    became slow would be late for ever.
    """
    equal = -(-lanes // members)
    return max(int(lanes * max_share), min(lanes, 2 * equal)) if max_share else equal
