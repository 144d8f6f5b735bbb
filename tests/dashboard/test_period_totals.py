"""Tokens of the last day and week: by the times in the history, and by those of new rounds."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from distro_node.node.dashboard.period_totals import DAY_HOURS, WEEK_HOURS, PeriodTotals

HOUR = 3600
NOW = 500_000 * HOUR + 1800
"""Half past some hour, in seconds since 1970."""


class Clock:
    def __init__(self) -> None:
        self.now = float(NOW)

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def line(round_: int, seconds: float, padding: int = 0) -> str:
    return json.dumps({"round": round_, "time": seconds, "counted": ["x" * padding]}) + "\n"


def test_new_rounds_count_when_their_time_is_known(tmp_path: Path, clock: Clock) -> None:
    totals = PeriodTotals(tmp_path / "none", clock)
    totals.add(1, {0: 100, 1: 50})
    assert totals.of_week(0) == 0
    totals.timed(1, NOW)
    totals.timed(1, NOW)
    totals.timed(2, NOW)
    assert (totals.of_day(0), totals.of_week(0), totals.of_day(1)) == (100, 100, 50)
    assert totals.of_day(7) == 0


def test_hours_fall_out_of_the_day_and_of_the_week(tmp_path: Path, clock: Clock) -> None:
    totals = PeriodTotals(tmp_path / "none", clock)
    for hour in range(WEEK_HOURS + 3):
        clock.now = NOW + hour * HOUR
        totals.add(hour, {0: 1})
        totals.timed(hour, clock.now)
        assert totals.of_day(0) == min(hour + 1, DAY_HOURS)
        assert totals.of_week(0) == min(hour + 1, WEEK_HOURS)
    clock.now += 23 * HOUR
    assert (totals.of_day(0), totals.of_week(0)) == (1, WEEK_HOURS - 23)
    clock.now += 2 * WEEK_HOURS * HOUR
    assert (totals.of_day(0), totals.of_week(0)) == (0, 0)


def test_times_that_cannot_be_are_bounded(tmp_path: Path, clock: Clock) -> None:
    totals = PeriodTotals(tmp_path / "none", clock)
    for round_, seconds in ((1, 1e300), (2, -1e300), (3, 0.0)):
        totals.add(round_, {0: 1})
        totals.timed(round_, seconds)
    # A time ahead of the clock counts as now.
    assert (totals.of_day(0), totals.of_week(0)) == (1, 1)
    clock.now += WEEK_HOURS * HOUR
    assert totals.of_week(0) == 0


@pytest.mark.parametrize("seed", range(5))
def test_old_rounds_are_found_in_the_history(tmp_path: Path, clock: Clock, seed: int) -> None:
    """The bisection gives the same sums as reading every line."""
    chance = random.Random(seed)
    path, seconds, expected = tmp_path / "history", NOW - 9.0 * 24 * HOUR, [0, 0]
    lines, rounds = list[str](), 0
    while (seconds := seconds + chance.expovariate(1 / 900)) < NOW:
        lines.append(line(rounds, seconds, chance.randrange(300)))
        if chance.random() < 0.3:
            lines.append(json.dumps({"round": rounds, "heldout": 1.0}) + "\n")
        ago = NOW // HOUR - int(seconds // HOUR)
        expected[0] += ago < DAY_HOURS
        expected[1] += ago < WEEK_HOURS
        rounds += 1
    # The last line is still being written.
    path.write_text("".join(lines) + '{"round": 7')
    totals = PeriodTotals(path, clock)
    for round_ in range(rounds):
        totals.add(round_, {0: 1})
    assert 50 < expected[0] < expected[1] < rounds
    assert [totals.of_day(0), totals.of_week(0)] == expected
    # The lines are read once more by the run history: they count once.
    for round_ in range(rounds):
        totals.timed(round_, NOW)
    totals.add(rounds, {0: 1})
    totals.timed(rounds, NOW)
    assert [totals.of_day(0), totals.of_week(0)] == [each + 1 for each in expected]


def test_rounds_that_were_not_seen_count_with_the_last_one_seen(
    tmp_path: Path, clock: Clock
) -> None:
    path = tmp_path / "history"
    path.write_text(line(1, NOW - 30 * HOUR) + line(5, NOW))
    totals = PeriodTotals(path, clock)
    for round_ in range(6):
        totals.add(round_, {0: 1})
    assert (totals.of_day(0), totals.of_week(0)) == (1, 5)


def test_rounds_that_passed_while_nobody_looked_count_in_their_hours(
    tmp_path: Path, clock: Clock
) -> None:
    """The page reads the ledger first, then the history: hundreds of rounds come before their times."""
    path = tmp_path / "history"
    path.write_text(line(0, NOW))
    totals = PeriodTotals(path, clock)
    totals.add(0, {0: 1})
    times = {round_: NOW + round_ * 120.0 for round_ in range(1, 1000)}
    clock.now = times[999]
    path.write_text(line(0, NOW) + "".join(line(*each) for each in times.items()))
    for round_ in times:
        totals.add(round_, {0: 1})
    for round_, seconds in times.items():
        totals.timed(round_, seconds)
    ago = [int(clock.now // HOUR) - int(seconds // HOUR) for seconds in times.values()]
    assert totals.of_day(0) == sum(hours < DAY_HOURS for hours in ago)
    assert totals.of_week(0) == 1000


def test_rounds_whose_times_come_late_are_not_lost(tmp_path: Path, clock: Clock) -> None:
    """A node that catches up has the ledger's rounds long before it applies them."""
    path = tmp_path / "history"
    path.write_text(line(0, NOW))
    totals = PeriodTotals(path, clock)
    for round_ in range(500):
        totals.add(round_, {0: 1})
    for round_ in range(500):
        totals.timed(round_, NOW)
    assert (totals.of_day(0), totals.of_week(0)) == (500, 500)


@pytest.mark.parametrize("kind", ["scores", "heldout", "sample"])
def test_a_measurement_of_an_old_round_moves_no_tokens(
    tmp_path: Path, clock: Clock, kind: str
) -> None:
    """Its line may be the first of an hour, and the last of the file."""
    measured = json.dumps({"round": 10**15, "time": NOW // HOUR * HOUR + 1.5, kind: None}) + "\n"
    late = measured.replace(str(10**15), "2")
    path = tmp_path / "history"
    path.write_text(
        "".join(line(round_, NOW - 30 * HOUR + round_ * HOUR) for round_ in range(30))
        + late
        + line(30, NOW)
        + late
    )
    totals = PeriodTotals(path, clock)
    for round_ in range(31):
        totals.add(round_, {0: 1})
    assert (totals.of_day(0), totals.of_week(0)) == (24, 31)
    path.write_text(line(0, NOW) + measured)
    totals = PeriodTotals(path, clock)
    totals.add(1, {0: 1})
    assert totals.of_day(0) == 0


def test_rounds_repeated_on_another_chain_count_at_the_later_time(
    tmp_path: Path, clock: Clock
) -> None:
    path = tmp_path / "history"
    early = "".join(line(round_, NOW - 40 * HOUR + round_) for round_ in range(10))
    path.write_text(early + "".join(line(round_, NOW + round_) for round_ in range(4, 8)))
    totals = PeriodTotals(path, clock)
    for round_ in range(8):
        totals.add(round_, {0: 1})
    assert (totals.of_day(0), totals.of_week(0)) == (4, 8)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\x00" * 5000, b'{"round": 1, "time": "x"}\n'])
def test_a_damaged_history_gives_no_hours(tmp_path: Path, clock: Clock, content: bytes) -> None:
    path = tmp_path / "history"
    path.write_bytes(content)
    totals = PeriodTotals(path, clock)
    totals.add(1, {0: 1})
    assert totals.of_week(0) == 0
