"""Energy out of what meters say: pure arithmetic, apart from whatever reads them.

Unknown is `None`, and stays unknown: a gap between two readings is no energy of zero, but a time of
which nothing is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

JOULES_PER_KWH = 3.6e6
MOST_WATTS = 10_000.0
"""Of one counter (a processor's package, a GPU). More between two readings is a counter that began anew,
or nonsense: it is not counted."""
_LONGEST_GAP = 60.0
"""Seconds. A counter of 2³² µJ wraps after half a minute at 140 W, so over a longer gap (a laptop that
slept) nobody knows how often it did; power that was read before and after says nothing of between."""


def counted_joules(
    before: int, after: int, *, wraps_at: int | None, units_per_joule: float, seconds: float
) -> float | None:
    """The energy between two readings of a counter that begins anew behind `wraps_at`; None: unknown.

    `wraps_at`, in the counter's units: None for one that does not wrap. `seconds`: between the
    readings. A counter that went backwards without wrapping (its driver was loaded anew) says nothing.
    """
    if not 0 < seconds <= _LONGEST_GAP:
        return None
    units = after - before
    if units < 0:
        if wraps_at is None or before > wraps_at:
            return None
        units += wraps_at
    # Whole numbers of any size compare with floats; not all of them become one.
    if not 0 <= units <= MOST_WATTS * seconds * units_per_joule:
        return None
    return units / units_per_joule


@dataclass(frozen=True)
class Reading:
    """What a meter said at one time: of each counter its value, or the power drawn just then."""

    at: float
    """Seconds of a clock that only goes forward."""
    counters: tuple[tuple[str, int, int | None, float], ...] = ()
    """Name, value, where it wraps, units a joule."""
    watts: float | None = None
    """Drawn now, where there is no counter."""


def joules_between(before: Reading, after: Reading) -> float | None:
    """The energy between two readings of one meter; None: unknown, if only in part."""
    seconds = after.at - before.at
    if not before.counters and not after.counters:
        if before.watts is None or after.watts is None or not 0 < seconds <= _LONGEST_GAP:
            return None
        mean = (before.watts + after.watts) / 2
        return mean * seconds if 0 <= mean <= MOST_WATTS else None
    earlier = {name: value for name, value, _, _ in before.counters}
    # A counter that came or went: what it counts is no longer what was counted before.
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
    """Adds up what one part of the computer took, while it works for the swarm."""

    def __init__(self) -> None:
        self.watts: float | None = None
        """Drawn between the last two readings, or now; None: unknown."""
        self.joules: float | None = None
        """In all; None: nothing was ever measured."""
        self.measured_seconds = 0.0
        self.worked_seconds = 0.0
        """Of work, measured or not."""
        self._last: Reading | None = None

    def take(self, reading: Reading | None, seconds: float, at_work: bool) -> float | None:
        """Note a reading, None for one that failed, `seconds` after the one before. Returns the joules
        that were added; None: it is not known how many, or it was not at work."""
        last, self._last = self._last, reading
        joules = None
        if last is not None and reading is not None:
            joules = joules_between(last, reading)
            passed = reading.at - last.at
            self.watts = None if joules is None else joules / passed
        else:
            self.watts = None
        if reading is not None and reading.watts is not None:
            # What the device says of now is better than a mean.
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
        """Which part of the work was measured, from 0 to 1; None before there was any."""
        if not self.worked_seconds:
            return None
        return self.measured_seconds / self.worked_seconds


def cost(joules: float | None, price: float | None) -> float | None:
    """Money, at a price a kWh."""
    if joules is None or price is None:
        return None
    return joules / JOULES_PER_KWH * price


def per_token(joules: float | None, tokens: int) -> float | None:
    """Joules a token; None before there was one."""
    return joules / tokens if joules is not None and tokens > 0 else None


def total(parts: list[float | None]) -> float | None:
    """The sum of what is known; None if nothing is."""
    known = [part for part in parts if part is not None and math.isfinite(part)]
    return sum(known) if known else None
