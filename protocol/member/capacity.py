"""Capacity: how many sequences a member can compute. It measures this itself and rarely changes the
announced value.

A member times its trainer and its own rounds. The number of sequences that it can compute in the part
of a round that is left after fixed work (encoding, applying, and without `overlap` the exchange) is its
capacity, stated in sequences per day: with shares in proportion to capacities, all members finish at the
same time. A unit that depended on the swarm's pace would have to be agreed on, and would change for all
members whenever one comes or goes.

Computing has a fixed part as well: an update takes the time of its sequences plus that of some more
sequences, the *overhead*. It can be derived if updates had different numbers of sequences. Without it a
member with a small share would seem slow, since its overhead is spread over few sequences, and would
keep its small share for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

DAY_SECONDS = 86_400
MOST_CAPACITY = 1 << 40

# Number of measurements whose median counts: one interrupted round does not change it.
_WINDOW = 7
# Number of updates from which the overhead is derived, and how many times larger than the smallest share
# of them the largest has to be: otherwise noise would decide.
_OVERHEAD_WINDOW = 16
_OVERHEAD_SPREAD = 1.5
# Overhead that is assumed while it is unknown, and the largest one that is believed, in multiples of the
# present share. With it, a member that is idle for part of the round states somewhat more capacity than
# it has shown, and its next updates show whether it has it. A share of fewer than three sequences counts
# as three here: otherwise a share of one could never grow.
_ASSUMED_OVERHEAD = 1.0
_MOST_OVERHEAD = 3.0
_SMALL_SHARE = 3
# The announced value stays while measurements differ from it by at most this fraction: each change
# assigns streams to other members, which have to fetch the data.
_HYSTERESIS = 1 / 16
# Minimum part of a round that counts as computing, however long the fixed part is: otherwise a few bad
# rounds would stop its measurements permanently.
_LEAST_PART = 1 / 4


class Capacity:
    """One member's measurements, and the capacity it announces. All times are in seconds."""

    def __init__(self) -> None:
        # Sequences and seconds of the last updates.
        self._timed: deque[tuple[int, float]] = deque(maxlen=_OVERHEAD_WINDOW)
        self._fixed: deque[float] = deque(maxlen=_WINDOW)
        self._applying: deque[float] = deque(maxlen=_WINDOW)
        self._exchanges: deque[float] = deque(maxlen=_WINDOW)
        self._stated = 0

    def trained(self, sequences: int, computing: float, fixed: float) -> None:
        """Record an update: its number of sequences, the seconds of computing them, and the `fixed`
        seconds of encoding, the same for every update."""
        if sequences > 0 and computing > 0:
            self._timed.append((sequences, computing))
            self._fixed.append(max(0.0, fixed))

    def applied(self, seconds: float) -> None:
        """Record how long a record took to apply."""
        if seconds > 0:
            self._applying.append(seconds)

    def exchanged(self, seconds: float) -> None:
        """Record the time from the last announcement of an update to the round's decision.

        Not called if members compute during this time (`overlap`).
        """
        self._exchanges.append(max(0.0, seconds))

    def measured(self, round_seconds: float | None) -> int:
        """Return how many sequences per day this member can compute if a round takes `round_seconds`
        (None if unknown); 0 if nothing was measured."""
        if not self._timed:
            return 0
        share = self._timed[-1][0]
        overhead = self._overhead(share)
        per_sequence = self._seconds_per_sequence(overhead)
        usual = share / (per_sequence * (share + overhead))
        if round_seconds:
            parts = self._fixed, self._applying, self._exchanges
            fixed = sum(_median(part) for part in parts if part)
            left = max(_LEAST_PART, 1.0 - fixed / round_seconds)
            # The first value assumes that a slow member, which computes one share over several rounds,
            # has the overhead once per share; the second one, that a member has it in every round.
            usual = max(usual * left, left / per_sequence - overhead / round_seconds)
        return max(1, min(MOST_CAPACITY, round(usual * DAY_SECONDS)))

    def stated(self, round_seconds: float | None) -> int:
        """Return the capacity to announce: the last one, unless measurements now differ too much."""
        measured = self.measured(round_seconds)
        if abs(measured - self._stated) > _HYSTERESIS * self._stated:
            self._stated = measured
        return self._stated

    def _overhead(self, share: int) -> float:
        """Return the fixed part of computing an update, as the number of sequences that take as long."""
        share = max(share, _SMALL_SHARE)
        most = max(self._timed, key=lambda timed: (timed[0], -timed[1]))
        fewer = [timed for timed in self._timed if _OVERHEAD_SPREAD * timed[0] <= most[0]]
        if not fewer:
            return _ASSUMED_OVERHEAD * share
        # Use the fastest update, since other work on the device makes some of them slower.
        few = min(fewer, key=lambda timed: timed[1])
        each = (most[1] - few[1]) / (most[0] - few[0])
        if each <= 0:
            # The device was busier at the time of the smaller share.
            return _ASSUMED_OVERHEAD * share
        return max(0.0, min(_MOST_OVERHEAD * share, few[1] / each - few[0]))

    def _seconds_per_sequence(self, overhead: float) -> float:
        """Return the seconds per sequence, where the overhead counts as further sequences.

        One slow update changes nothing, since it may have been interrupted. Two fast ones in a row do:
        nothing makes an update faster than the device is.
        """
        found = [seconds / (sequences + overhead) for sequences, seconds in self._timed]
        return min(_median(found[-_WINDOW:]), max(found[-2:]))


def _median(values: Collection[float]) -> float:
    return sorted(values)[len(values) // 2]
