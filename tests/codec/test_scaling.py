"""The factor of a scaled step: one float32 on every machine."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from distro_node.protocol.codec.scaling import SMALLEST_FACTOR, step_factor
from hypothesis import given
from hypothesis import strategies as st

# Frozen: another value would split a swarm.
GOLDEN = [
    ((2.0**-8, Fraction(512)), 0x32B7E19A),
    ((2.0**-8, Fraction(512, 7)), 0x33734086),
    ((2.0**-8, Fraction(1, 3)), 0x35613527),
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
)
def test_it_is_the_learning_rate_over_a_root_mean_square(
    rate: float, squares: int, blocks: int
) -> None:
    found = step_factor(rate, Fraction(squares, blocks))
    root = 127**2 / 2 * math.sqrt(squares / blocks)
    assert found == pytest.approx(rate / root, rel=2.0**-23)
    assert np.float32(found) == found


def test_a_square_has_an_exact_root() -> None:
    for exponent in (-20, 0, 40):
        squares = Fraction(4, 127**4) * Fraction(2) ** exponent
        assert step_factor(2.0**-9, squares) == 2.0 ** (-9 - exponent // 2)


def test_nothing_moves_where_everything_cancels_or_the_rate_is_nothing() -> None:
    assert step_factor(2.0**-8, Fraction(0)) == 0.0
    assert step_factor(0.0, Fraction(1)) == 0.0


def test_a_step_too_small_for_some_devices_is_none() -> None:
    one = Fraction(4, 127**4)
    assert step_factor(SMALLEST_FACTOR, one) == SMALLEST_FACTOR
    assert step_factor(SMALLEST_FACTOR, 2 * one) == 0.0
    with pytest.raises(OverflowError):
        step_factor(1.0, one / 2**260)
