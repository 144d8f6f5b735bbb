"""Capacity: how many sequences a member can compute, measured by itself and announced rarely.

A member times its trainer and its own rounds. The part of a round that is left after fixed work
(encoding, applying, and without `overlap` the exchange), times its rate of computing sequences, is its
capacity, in sequences per day: with shares in proportion to capacities, all members finish at the same
time. A unit that depended on the swarm's pace would have to be agreed on, and would change for all
members whenever one comes or goes.
"""

from __future__ import annotations

from collections import deque

DAY_SECONDS = 86_400
MOST_CAPACITY = 1 << 40

# Number of measurements whose median counts: one interrupted round is no change.
_WINDOW = 7
# The announced value stays while measurements are this close to it: each change moves streams, and a
# member that gets one fetches its data.
_HYSTERESIS = 1 / 16
# Minimum part of a round that counts as computing, however long the fixed part is: otherwise a few bad
# rounds would stop its measurements for good.
_LEAST_PART = 1 / 4


class Capacity:
    """One member's measurements, and the capacity it announces. All times are in seconds."""

    def __init__(self) -> None:
        self._per_sequence: deque[float] = deque(maxlen=_WINDOW)
        self._fixed: deque[float] = deque(maxlen=_WINDOW)
        self._applying: deque[float] = deque(maxlen=_WINDOW)
        self._exchanges: deque[float] = deque(maxlen=_WINDOW)
        self._stated = 0

    def trained(self, sequences: int, computing: float, fixed: float) -> None:
        """Record an update: its number of sequences, the seconds of computing them, and the seconds that
        any update takes."""
        if sequences > 0 and computing > 0:
            self._per_sequence.append(computing / sequences)
            self._fixed.append(max(0.0, fixed))

    def applied(self, seconds: float) -> None:
        """Record how long a record took to apply."""
        if seconds > 0:
            self._applying.append(seconds)

    def exchanged(self, seconds: float) -> None:
        """Record the time from the last announcement of an update to the round's decision.

        Not called where members compute meanwhile.
        """
        self._exchanges.append(max(0.0, seconds))

    def measured(self, round_seconds: float | None) -> int:
        """Return the sequences per day if a round takes `round_seconds` (None if unknown); 0 if nothing
        was measured."""
        if not self._per_sequence:
            return 0
        rate = 1.0 / _median(self._per_sequence)
        if round_seconds:
            parts = self._fixed, self._applying, self._exchanges
            fixed = sum(_median(part) for part in parts if part)
            rate *= max(_LEAST_PART, 1.0 - fixed / round_seconds)
        return max(1, min(MOST_CAPACITY, round(rate * DAY_SECONDS)))

    def stated(self, round_seconds: float | None) -> int:
        """Return the capacity to announce: the last one, unless it has become wrong."""
        measured = self.measured(round_seconds)
        if abs(measured - self._stated) > _HYSTERESIS * self._stated:
            self._stated = measured
        return self._stated


def _median(values: deque[float]) -> float:
    return sorted(values)[len(values) // 2]
