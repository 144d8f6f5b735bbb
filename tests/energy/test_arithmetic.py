"""Energy from readings: wrapped counters, gaps, and unknown values."""

from __future__ import annotations

import math

import pytest
from distro_node.node.energy.arithmetic import (
    MOST_WATTS,
    Meter,
    MeterReading,
    cost,
    counted_joules,
    joules_between,
    per_token,
    total,
)
from hypothesis import given
from hypothesis import strategies as st

RANGE = 262_143_328_850  # of a desktop processor's package, µJ


def between(before: int, after: int, seconds: float = 2.0, wraps_at: int | None = RANGE) -> object:
    return counted_joules(before, after, wraps_at=wraps_at, units_per_joule=1e6, seconds=seconds)


def test_a_counter_that_wraps_counts_on() -> None:
    assert between(1_000_000, 131_000_000) == 130.0
    assert between(RANGE - 30_000_000, 100_000_000) == pytest.approx(130.0)


@given(st.integers(0, RANGE), st.floats(0.0, 60.0 * 500))
def test_wherever_it_stands_the_energy_is_the_same(start: int, joules: float) -> None:
    end = (start + int(joules * 1e6)) % RANGE
    assert between(start, end, seconds=60.0) == pytest.approx(int(joules * 1e6) / 1e6, abs=1e-6)


@pytest.mark.parametrize(
    ("before", "after", "seconds", "wraps_at"),
    [
        # Backwards without a wrap: 200 W before, then restarted from zero.
        (200_000_000_000, 5_000_000, 2.0, RANGE),
        (5_000_000, 4_000_000, 2.0, None),
        # Ahead by more than any device uses.
        (0, int(MOST_WATTS * 2.1e6), 2.0, RANGE),
        (0, 10**400, 2.0, None),
        # After a night of suspension, at the same moment, and before it.
        (0, 1_000_000, 61.0, RANGE),
        (0, 1_000_000, 0.0, RANGE),
        (0, 1_000_000, -1.0, RANGE),
        # Beyond its own limit.
        (RANGE + 5, 1, 2.0, RANGE),
    ],
)
def test_what_cannot_be_is_not_known(
    before: int, after: int, seconds: float, wraps_at: int | None
) -> None:
    assert between(before, after, seconds, wraps_at) is None


def reading(at: float, joules: float | None = None, watts: float | None = None) -> MeterReading:
    counters = () if joules is None else (("a", int(joules * 1e6), RANGE, 1e6),)
    return MeterReading(at=at, counters=counters, watts=watts)


def test_power_alone_is_added_up() -> None:
    assert joules_between(reading(0, watts=100), reading(2, watts=200)) == 300
    assert joules_between(reading(0, watts=math.nan), reading(2, watts=200)) is None
    assert joules_between(reading(0, watts=100), reading(100, watts=200)) is None


def test_a_counter_that_comes_or_goes_measures_nothing_in_between() -> None:
    two = MeterReading(at=2, counters=(("a", 5, RANGE, 1e6), ("b", 5, RANGE, 1e6)))
    assert joules_between(reading(0, joules=0), two) is None
    assert joules_between(two, reading(4, joules=1)) is None
    assert joules_between(reading(0, joules=0), reading(2, watts=50)) is None


def test_a_meter_counts_work_alone_and_reports_how_much_was_measured() -> None:
    meter = Meter()
    assert (meter.watts, meter.joules, meter.measured) == (None, None, None)
    meter.take(reading(0, joules=0), 2, at_work=True)
    assert meter.joules is None
    meter.take(reading(2, joules=100), 2, at_work=True)
    assert (meter.watts, meter.joules, meter.measured) == (50, 100, 0.5)
    # Paused: power is used, and nothing is counted.
    meter.take(reading(4, joules=120), 2, at_work=False)
    assert (meter.watts, meter.joules, meter.measured) == (10, 100, 0.5)
    # Gone, and back: its energy meanwhile is unknown.
    meter.take(None, 2, at_work=True)
    assert meter.watts is None
    meter.take(reading(8, joules=900), 2, at_work=True)
    meter.take(reading(10, joules=1000), 2, at_work=True)
    assert (meter.watts, meter.joules, meter.measured) == (50, 200, 0.4)


def test_money_and_tokens() -> None:
    assert cost(3.6e6, 0.3) == pytest.approx(0.3)
    assert cost(3.6e6, 0.0) == 0.0
    assert cost(None, 0.3) is cost(1.0, None) is None
    assert per_token(50.0, 10) == 5.0
    assert per_token(50.0, 0) is per_token(None, 5) is None
    assert total([1.0, None, 2.0]) == 3.0
    assert total([None]) is total([]) is None
