"""Apportionment of whole streams in proportion to weights: D'Hondt's method, with a bound per member.

Each stream in turn goes to the member that would finish soonest with one more. No other apportionment
of whole streams makes the slowest member finish sooner; with the largest-remainder method, one member
could delay all others if shares are small. D'Hondt's method is house monotone: removing streams in the
reverse order leaves the apportionment of fewer streams, so that lending a stream to a slow member moves
no other stream.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import lru_cache

# Time of one stream at weight 1: times are whole numbers in this scale. Two times that differ by less
# than one in 2^24 may be ordered by rounding, in the same way on every machine.
_UNIT = 1 << 64


@lru_cache(maxsize=64)
def apportion(streams: int, weights: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Return how many of the `streams` go to each of the `weights`, which are at least 1; ties go to the
    first. No member gets more than `most`, which times the number of members must reach `streams`."""
    given = [0] * len(weights)
    left, rest = streams, list(range(len(weights)))
    # Each member gets its proportion rounded down, which it would get in any case; a member whose
    # proportion exceeds `most` gets `most`.
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
    missing = streams - sum(given)
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


def time_of(streams: int, weight: int) -> int:
    """Return how long `streams` streams take at this weight, in an arbitrary unit."""
    return streams * _UNIT // weight


def pace_of(given: Sequence[int], weights: Sequence[int]) -> int:
    """Return the time of the slowest member, in the unit of `time_of`."""
    return max(time_of(streams, weight) for streams, weight in zip(given, weights, strict=True))


def max_streams(streams: int, members: int, max_share: float) -> int:
    """Return the most streams for one member: `max_share` of all, or twice an equal share if that is
    more; with a `max_share` of 0, an equal share.

    Twice an equal share, because with a bound of one equal share no member could get less than that
    either, and in a swarm of three a member that became slow would always be late.
    """
    equal = -(-streams // members)
    return max(int(streams * max_share), min(streams, 2 * equal)) if max_share else equal
