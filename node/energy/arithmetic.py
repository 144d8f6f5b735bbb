"""Energy from meter readings: pure arithmetic, independent of how the meters are read.

Unknown is `None`, and stays unknown: a gap between two readings counts as unmeasured time, not as zero
energy.
"""

from __future__ import annotations

from dataclasses import dataclass, field

JOULES_PER_KWH = 3.6e6
MOST_WATTS = 10_000.0
"""Maximum plausible power of a GPU. If the mean between two readings is higher, the counter was reset or
is wrong, and the energy counts as unknown."""
_LONGEST_GAP = 60.0
"""Longest gap in seconds between two readings that are compared: the power before and after a gap does
not show the power during the gap, for example while a laptop was suspended."""
_MILLIJOULES = 1000


@dataclass(frozen=True)
class MeterReading:
    """Values of all GPUs at one time: their energy counters, the power drawn at that moment, or both."""

    at: float
    """Seconds of a monotonic clock."""
    counters: dict[str, int] = field(default_factory=dict)
    """Millijoules by the card's UUID; empty if a card has no counter."""
    watts: float | None = None
    """Power drawn at that moment. The energy is computed from it if there are no counters."""


def joules_between(before: MeterReading, after: MeterReading) -> float | None:
    """Return the energy between two readings; None if any part is unknown."""
    seconds = after.at - before.at
    # If a counter appeared or disappeared, the two sums do not cover the same cards.
    if not 0 < seconds <= _LONGEST_GAP or before.counters.keys() != after.counters.keys():
        return None
    if not before.counters:
        if before.watts is None or after.watts is None:
            return None
        mean = (before.watts + after.watts) / 2
        return mean * seconds if 0 <= mean <= MOST_WATTS else None
    parts = [count - before.counters[card] for card, count in after.counters.items()]
    # A counter that decreased was reset: its driver was reloaded. Compared before the division: a huge
    # integer compares with a float, but does not convert to one.
    if not all(0 <= part <= MOST_WATTS * seconds * _MILLIJOULES for part in parts):
        return None
    return sum(parts) / _MILLIJOULES


class Meter:
    """Sum of the energy that the GPUs used while the node worked for the swarm."""

    def __init__(self) -> None:
        self.watts: float | None = None
        """Power at the last reading; None if unknown."""
        self.joules: float | None = None
        """Total energy used at work; None if none was ever measured."""
        self.measured_seconds = 0.0
        self.worked_seconds = 0.0
        """Time at work, measured or not."""
        self._last: MeterReading | None = None

    def take(self, reading: MeterReading | None, seconds: float, at_work: bool) -> None:
        """Add a reading (None if it failed), taken `seconds` after the previous one."""
        last, self._last = self._last, reading
        self.watts = None if reading is None else reading.watts
        if not at_work:
            return
        self.worked_seconds += seconds
        if last is None or reading is None:
            return
        joules = joules_between(last, reading)
        if joules is not None:
            self.joules = joules + (self.joules or 0.0)
            self.measured_seconds += seconds

    @property
    def measured(self) -> float | None:
        """Fraction of the work that was measured, from 0 to 1; None before any work."""
        return self.measured_seconds / self.worked_seconds if self.worked_seconds else None
