"""What a scaled step multiplies with: one float32 on every machine."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from distro_node.protocol.codec.scaling import SMALLEST_FACTOR, step_factor
from hypothesis import given
from hypothesis import strategies as st

# Frozen: another value here would tear a swarm apart.
GOLDEN = [
    ((2.0**-8, Fraction(512), 2), 0x32B7E19A),
    ((2.0**-8, Fraction(512, 7), 1), 0x36AAA950),
    ((2.0**-8, Fraction(1, 3), 0), 0x3BDDB3D7),
]


def bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def test_golden_values() -> None:
    found = [bits(step_factor(*given_)) for given_, _ in GOLDEN]
    assert [hex(each) for each in found] == [hex(expected) for _, expected in GOLDEN]


@given(
    rate=st.floats(2.0**-30, 1.0, width=32),
    squares=st.integers(1, 2**60),
    blocks=st.integers(1, 2**24),
    sides=st.integers(0, 2),
)
def test_it_is_the_learning_rate_over_a_root_mean_square(
    rate: float, squares: int, blocks: int, sides: int
) -> None:
    found = step_factor(rate, Fraction(squares, blocks), sides)
    mean_square = squares / blocks * (127**2 / 2) ** sides
    assert found == pytest.approx(rate / math.sqrt(mean_square), rel=2.0**-23)
    assert np.float32(found) == found


def test_a_square_has_an_exact_root() -> None:
    assert step_factor(1.0, Fraction(1, 2**20), 0) == 2.0**10
    assert step_factor(2.0**-9, Fraction(2**40), 0) == 2.0**-29
    assert step_factor(1.0, Fraction(4, 127**4), 2) == 1.0


def test_nothing_moves_where_everything_cancels_or_the_rate_is_nothing() -> None:
    assert step_factor(2.0**-8, Fraction(0), 2) == 0.0
    assert step_factor(0.0, Fraction(1), 2) == 0.0


def test_a_step_too_small_for_some_devices_is_none() -> None:
    assert step_factor(SMALLEST_FACTOR, Fraction(1), 0) == SMALLEST_FACTOR
    assert step_factor(SMALLEST_FACTOR, Fraction(2), 0) == 0.0
    with pytest.raises(OverflowError):
        step_factor(1.0, Fraction(1, 2**260), 0)
