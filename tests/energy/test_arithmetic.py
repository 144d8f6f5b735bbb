"""Energy from readings: counters, gaps, and unknown values."""

from __future__ import annotations

import math

import pytest
from distro_node.node.energy.arithmetic import MOST_WATTS, Meter, MeterReading, joules_between


@pytest.mark.parametrize(
    ("before", "after", "seconds", "joules"),
    [
        (1_000, 131_000, 2.0, 130.0),
        # Backwards: the counter restarted from zero.
        (5_000_000, 4_000_000, 2.0, None),
        # Ahead by more than any card uses.
        (0, int(MOST_WATTS * 2.1e3), 2.0, None),
        (0, 10**400, 2.0, None),
        # After a night of suspension, at the same moment, and before it.
        (0, 1_000, 61.0, None),
        (0, 1_000, 0.0, None),
        (0, 1_000, -1.0, None),
    ],
)
def test_what_cannot_be_is_not_known(
    before: int, after: int, seconds: float, joules: float | None
) -> None:
    readings = [MeterReading(at=at, counters={"a": n}) for at, n in ((0, before), (seconds, after))]
    assert joules_between(*readings) == joules


def reading(at: float, joules: float | None = None, watts: float | None = None) -> MeterReading:
    counters = {} if joules is None else {"a": int(joules * 1e3)}
    return MeterReading(at=at, counters=counters, watts=watts)


def test_power_alone_is_added_up() -> None:
    assert joules_between(reading(0, watts=100), reading(2, watts=200)) == 300
    assert joules_between(reading(0, watts=math.nan), reading(2, watts=200)) is None
    assert joules_between(reading(0, watts=100), reading(100, watts=200)) is None
    assert joules_between(reading(0, watts=100), reading(2)) is None


def test_a_counter_that_comes_or_goes_measures_nothing_in_between() -> None:
    two = MeterReading(at=2, counters={"a": 5, "b": 5})
    assert joules_between(reading(0, joules=0), two) is None
    assert joules_between(two, reading(4, joules=1)) is None
    assert joules_between(reading(0, joules=0), reading(2, watts=50)) is None


def test_a_meter_counts_work_alone_and_reports_how_much_was_measured() -> None:
    meter = Meter()
    assert (meter.watts, meter.joules, meter.measured) == (None, None, None)
    meter.take(reading(0, joules=0), 2, at_work=True)
    assert meter.joules is None
    meter.take(reading(2, joules=100, watts=50), 2, at_work=True)
    assert (meter.watts, meter.joules, meter.measured) == (50, 100, 0.5)
    # Paused: power is used, and nothing is counted.
    meter.take(reading(4, joules=120, watts=10), 2, at_work=False)
    assert (meter.watts, meter.joules, meter.measured) == (10, 100, 0.5)
    # Gone, and back: its energy meanwhile is unknown.
    meter.take(None, 2, at_work=True)
    assert meter.watts is None
    meter.take(reading(8, joules=900), 2, at_work=True)
    meter.take(reading(10, joules=1000), 2, at_work=True)
    assert (meter.joules, meter.measured) == (200, 0.4)
