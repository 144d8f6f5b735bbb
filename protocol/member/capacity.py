"""How much a member can do, measured by itself and said seldom: its capacity.

A member times what its trainer does, and its own rounds. What is left of a round beside fixed work
(encoding, applying, and without `overlap` the exchange), times the sequences that it computes in a
second, is its capacity, as sequences a day: so a share in proportion to capacities lets all be done at
the same time. A unit that depended on the swarm's pace would have to be agreed on, and would change for
everybody whenever somebody comes or goes.
"""

from __future__ import annotations

from collections import deque

DAY_SECONDS = 86_400
MOST_CAPACITY = 1 << 40

# So many of the last measurements, of which the median counts: one interrupted round is no change.
_WINDOW = 7
# What is said stays while measurements are this close to it: each change moves lanes, and whoever gets
# one fetches its data.
_HYSTERESIS = 1 / 16
# However long a round's fixed part is, a member computes during this part of it: its measurements
# would else stop for good after a few bad rounds.
_LEAST_PART = 1 / 4


class Capacity:
    """One member's measurements, and what it says of them. All times are in seconds."""

    def __init__(self) -> None:
        self._per_sequence: deque[float] = deque(maxlen=_WINDOW)
        self._fixed: deque[float] = deque(maxlen=_WINDOW)
        self._applying: deque[float] = deque(maxlen=_WINDOW)
        self._exchanges: deque[float] = deque(maxlen=_WINDOW)
        self._stated = 0

    def trained(self, sequences: int, computing: float, fixed: float) -> None:
        """An update was made in so many seconds of computing, and some that any update takes."""
        if sequences > 0 and computing > 0:
            self._per_sequence.append(computing / sequences)
            self._fixed.append(max(0.0, fixed))

    def applied(self, seconds: float) -> None:
        """A record took so long to apply."""
        if seconds > 0:
            self._applying.append(seconds)

    def exchanged(self, seconds: float) -> None:
        """So long after the last update was announced the round was decided; where members compute
        meanwhile, this is not called."""
        self._exchanges.append(max(0.0, seconds))

    def measured(self, round_seconds: float | None) -> int:
        """Sequences a day, where a round takes `round_seconds` (None: nobody knows); 0 if nothing was
        measured."""
        if not self._per_sequence:
            return 0
        rate = 1.0 / _median(self._per_sequence)
        if round_seconds:
            parts = self._fixed, self._applying, self._exchanges
            fixed = sum(_median(part) for part in parts if part)
            rate *= max(_LEAST_PART, 1.0 - fixed / round_seconds)
        return max(1, min(MOST_CAPACITY, round(rate * DAY_SECONDS)))

    def stated(self, round_seconds: float | None) -> int:
        """What to say now: what was said last, unless that is no longer true."""
        measured = self.measured(round_seconds)
        if abs(measured - self._stated) > _HYSTERESIS * self._stated:
            self._stated = measured
        return self._stated


def _median(values: deque[float]) -> float:
    return sorted(values)[len(values) // 2]
