"""Energy from meter readings: pure arithmetic, independent of how the meters are read.

Unknown is `None`, and stays unknown: a gap between two readings counts as unmeasured time, not as zero
energy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

JOULES_PER_KWH = 3.6e6
MOST_WATTS = 10_000.0
"""Maximum plausible power at one counter (a processor's package, a GPU). If the mean between two
readings is higher, the counter was reset or is wrong, and the energy counts as unknown."""
_LONGEST_GAP = 60.0
"""Longest gap in seconds between two readings that are compared. A counter of 2³² µJ wraps after half a
minute at 140 W, so the number of wraps in a longer gap (a suspended laptop) is unknown; and the power
before and after a gap does not show the power during the gap."""


def counted_joules(
    before: int, after: int, *, wraps_at: int | None, units_per_joule: float, seconds: float
) -> float | None:
    """Return the energy between two readings of a counter that restarts after `wraps_at`; None if
    unknown.

    `wraps_at` is in the counter's units, None for a counter that does not wrap. `seconds`: time between
    the readings. The energy is also unknown if the counter decreased without wrapping, because its
    driver was reloaded.
    """
    if not 0 < seconds <= _LONGEST_GAP:
        return None
    units = after - before
    if units < 0:
        if wraps_at is None or before > wraps_at:
            return None
        units += wraps_at
    # Compared before the division: an integer of any size compares with a float, but a huge one does not
    # convert to a float.
    if not 0 <= units <= MOST_WATTS * seconds * units_per_joule:
        return None
    return units / units_per_joule


@dataclass(frozen=True)
class MeterReading:
    """Values of a meter at one time: its counters, the power drawn at that moment, or both."""

    at: float
    """Seconds of a monotonic clock."""
    counters: tuple[tuple[str, int, int | None, float], ...] = ()
    """Name, value, wrap limit, units per joule."""
    watts: float | None = None
    """Power drawn at that moment; None if the meter has only counters. The energy is computed from it if
    there is no counter."""


def joules_between(before: MeterReading, after: MeterReading) -> float | None:
    """Return the energy between two readings of one meter; None if any part is unknown."""
    seconds = after.at - before.at
    if not before.counters and not after.counters:
        if before.watts is None or after.watts is None or not 0 < seconds <= _LONGEST_GAP:
            return None
        mean = (before.watts + after.watts) / 2
        return mean * seconds if 0 <= mean <= MOST_WATTS else None
    earlier = {name: value for name, value, _, _ in before.counters}
    # If a counter appeared or disappeared, the two sums do not cover the same devices.
    if earlier.keys() != {name for name, _, _, _ in after.counters}:
        return None
    total = 0.0
    for name, value, wraps_at, units in after.counters:
        joules = counted_joules(
            earlier[name], value, wraps_at=wraps_at, units_per_joule=units, seconds=seconds
        )
        if joules is None:
            return None
        total += joules
    return total


class Meter:
    """Sum of the energy that one part of the computer used while working for the swarm."""

    def __init__(self) -> None:
        self.watts: float | None = None
        """Mean power between the last two readings, or the power at the last one; None if unknown."""
        self.joules: float | None = None
        """Total energy used at work; None if none was ever measured."""
        self.measured_seconds = 0.0
        self.worked_seconds = 0.0
        """Time at work, measured or not."""
        self._last: MeterReading | None = None

    def take(self, reading: MeterReading | None, seconds: float, at_work: bool) -> float | None:
        """Add a reading (None if it failed), taken `seconds` after the previous one. Return the joules
        added; None if they are unknown, or if the node was not at work."""
        last, self._last = self._last, reading
        joules = None
        if last is not None and reading is not None:
            joules = joules_between(last, reading)
            passed = reading.at - last.at
            self.watts = None if joules is None else joules / passed
        else:
            self.watts = None
        if reading is not None and reading.watts is not None:
            # The device's current value is better than a mean.
            self.watts = reading.watts
        if not at_work:
            return None
        self.worked_seconds += seconds
        if joules is None:
            return None
        self.joules = joules + (self.joules or 0.0)
        self.measured_seconds += seconds
        return joules

    @property
    def measured(self) -> float | None:
        """Fraction of the work that was measured, from 0 to 1; None before any work."""
        if not self.worked_seconds:
            return None
        return self.measured_seconds / self.worked_seconds


def cost(joules: float | None, price: float | None) -> float | None:
    """Return the cost at a price per kWh; None if either is unknown."""
    if joules is None or price is None:
        return None
    return joules / JOULES_PER_KWH * price


def per_token(joules: float | None, tokens: int) -> float | None:
    """Return joules per token; None before the first token."""
    return joules / tokens if joules is not None and tokens > 0 else None


def total(parts: list[float | None]) -> float | None:
    """Return the sum of the known parts; None if none is known."""
    known = [part for part in parts if part is not None and math.isfinite(part)]
    return sum(known) if known else None
