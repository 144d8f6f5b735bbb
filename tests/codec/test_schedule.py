"""The learning rate: its shape, and that it is one float32 on every machine."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from distro_node.protocol.codec.schedule import cosine, learning_rate, nearest_float32
from distro_node.protocol.wire.manifest import ScheduleSpec
from hypothesis import given
from hypothesis import strategies as st

# Frozen: another value would split a swarm.
GOLDEN_COSINE = [970045207, 965951749, 942130605]
SCHEDULE = ScheduleSpec(
    peak=2.0**-8, warmup_rounds=4, total_rounds=100, decay_rounds=10, final=0.25
)


def test_shape() -> None:
    peak = SCHEDULE.peak
    assert [learning_rate(SCHEDULE, r) / peak for r in (1, 2, 3, 4, 5)] == [0.25, 0.5, 0.75, 1, 1]
    assert learning_rate(SCHEDULE, 90) == peak
    assert learning_rate(SCHEDULE, 95) == nearest_float32(Fraction(peak) * Fraction(5, 8))
    assert learning_rate(SCHEDULE, 100) == peak / 4
    assert learning_rate(SCHEDULE, 10**12) == peak / 4


def test_without_warm_up_and_decay_it_is_constant() -> None:
    flat = ScheduleSpec(peak=2.0**-9, warmup_rounds=0, decay_rounds=0, total_rounds=5)
    assert {learning_rate(flat, r) for r in (1, 5, 6, 1000)} == {2.0**-9}


def test_warm_up_may_meet_the_decay() -> None:
    triangle = ScheduleSpec(peak=1.0, warmup_rounds=2, decay_rounds=2, total_rounds=4, final=0.0)
    assert [learning_rate(triangle, r) for r in range(1, 6)] == [0.5, 1.0, 0.5, 0.0, 0.0]


def test_a_line_from_the_warm_up_on() -> None:
    line = ScheduleSpec(peak=1.0, warmup_rounds=2, total_rounds=6, final=0.5, shape="linear")
    rates = [learning_rate(line, r) for r in range(1, 9)]
    assert rates == [0.5, 1.0, 0.875, 0.75, 0.625, 0.5, 0.5, 0.5]


def test_half_a_cosine_from_the_warm_up_on() -> None:
    half = ScheduleSpec(peak=1.0, warmup_rounds=2, total_rounds=6, final=0.0, shape="cosine")
    rates = [learning_rate(half, r) for r in range(1, 8)]
    expected = [0.5, *((1 + math.cos(math.pi * i / 4)) / 2 for i in range(5)), 0.0]
    assert rates == pytest.approx(expected, abs=1e-7)
    # Exact to the bit in the middle.
    assert (rates[1], rates[3], rates[5], rates[6]) == (1.0, 0.5, 0.0, 0.0)


def test_the_reports_schedule() -> None:
    """Table 1 of the DisTrO report: 4e-4 to 4e-5 by a cosine over 25,000 steps, warm-up 400."""
    report = ScheduleSpec(
        peak=4e-4, warmup_rounds=400, total_rounds=25_000, final=0.1, shape="cosine"
    )
    assert learning_rate(report, 1) == pytest.approx(1e-6)
    assert learning_rate(report, 400) == pytest.approx(4e-4)
    assert learning_rate(report, 12_700) == pytest.approx(2.2e-4)
    assert learning_rate(report, 25_000) == learning_rate(report, 30_000) == pytest.approx(4e-5)
    bits = [int(np.float32(learning_rate(report, r)).view(np.uint32)) for r in (401, 9999, 24_999)]
    assert bits == GOLDEN_COSINE


@given(st.fractions(0, 1))
def test_the_cosine_is_the_cosine(half_turns: Fraction) -> None:
    assert abs(float(cosine(half_turns)) - math.cos(math.pi * float(half_turns))) < 1e-15


def test_only_a_plateau_has_decay_rounds() -> None:
    with pytest.raises(ValueError, match="belongs to shape = 'wsd'"):
        ScheduleSpec(shape="cosine", decay_rounds=10)


def test_rounds_count_from_one() -> None:
    with pytest.raises(ValueError, match="count from 1"):
        learning_rate(SCHEDULE, 0)


def test_golden_values() -> None:
    """Frozen bits: another value would split a swarm."""
    schedule = ScheduleSpec(peak=4e-3, warmup_rounds=7, total_rounds=60, decay_rounds=13, final=0.1)
    bits = [
        int(np.float32(learning_rate(schedule, r)).view(np.uint32)) for r in (1, 6, 7, 50, 53, 60)
    ]
    assert bits == [974506988, 996192738, 998445679, 995078879, 991510752, 970045207]


@given(
    st.floats(0, 1), st.integers(0, 50), st.integers(0, 50), st.floats(0, 1), st.integers(1, 200)
)
def test_every_rate_is_a_float32_between_zero_and_the_peak(
    peak: float, warmup: int, decay: int, final: float, round_number: int
) -> None:
    schedule = ScheduleSpec(
        peak=peak, warmup_rounds=warmup, decay_rounds=decay, total_rounds=100, final=final
    )
    rate = learning_rate(schedule, round_number)
    assert float(np.float32(rate)) == rate
    assert 0 <= rate <= float(np.nextafter(np.float32(peak), np.float32(2)))


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float32_rounds_to_itself(value: float) -> None:
    assert nearest_float32(Fraction(value)) == value


@given(st.floats(-1e30, 1e30))
def test_rounding_agrees_with_the_hardware(value: float) -> None:
    assert nearest_float32(Fraction(value)) == float(np.float32(value))


def test_one_rounding_not_two() -> None:
    """Just above a float32 tie: by way of float64 it would become the tie, then round down."""
    value = 1 + Fraction(1, 2**24) + Fraction(1, 2**80)
    assert nearest_float32(value) == 1 + 2.0**-23
    assert float(np.float32(float(value))) == 1.0


def test_too_large() -> None:
    with pytest.raises(OverflowError):
        nearest_float32(Fraction(2) ** 128)
