"""The score of an audit: its distribution for random signs, and hostile numbers."""

from __future__ import annotations

import numpy as np
import pytest
from distro_node.protocol.audit.sign_score import (
    SignSums,
    integer_weights,
    sign_sums,
)

COUNT = 2000


def coins(chance: np.random.Generator, count: int = COUNT) -> np.ndarray:
    return chance.choice(np.array([-1, 1], np.int8), count)


def test_coins_score_like_a_standard_normal() -> None:
    """Whatever the weights: here some are a hundred times as large as others."""
    chance = np.random.default_rng(1)
    weights = integer_weights(chance.standard_t(2, COUNT))
    scores = [sign_sums(coins(chance), weights).score for _ in range(2000)]
    assert abs(np.mean(scores)) < 0.1
    assert np.std(scores) == pytest.approx(1, abs=0.06)


def test_a_score_is_the_sum_over_the_root_of_squares() -> None:
    found = sign_sums(np.array([1, -1, 1], np.int8), np.array([3, 4, 0], np.int16))
    assert (found.total, found.squares) == (-1, 25)
    assert found.score == -0.2
    assert sign_sums(np.array([1], np.int8), np.array([0], np.int16)).score == 0.0


def test_thousandths_are_the_score_in_whole_numbers() -> None:
    chance = np.random.default_rng(5)
    for _ in range(2000):
        squares = int(chance.integers(1, 1 << int(chance.integers(1, 62))))
        found = SignSums(int(chance.integers(-30, 30) * squares**0.5 * chance.random()), squares)
        exact = 1000 * found.score
        # Truncated towards 0, so that both signs have the same size.
        assert abs(found.thousandths - exact) < 1 + 1e-9
        assert abs(found.thousandths) <= abs(exact) + 1e-9
        assert SignSums(-found.total, squares).thousandths == -found.thousandths
    assert SignSums(5, 0).thousandths == 0
    assert SignSums(-(1 << 30), 1).thousandths == -1000 << 30


def test_numbers_of_any_size_stay_exact() -> None:
    signs = np.ones(1 << 20, dtype=np.int8)
    found = sign_sums(signs, np.full(1 << 20, 1024, np.int16))
    assert found == SignSums(1 << 30, 1 << 40)
    assert found.score == 1024.0
    assert SignSums(10**30, 10**58).thousandths == 10_000
    assert SignSums(10**30, 10**58 + 10**50).thousandths == 9_999


@pytest.mark.parametrize(
    "value", [np.nan, np.inf, -np.inf, 1e38, -1e-45, 3.4e38], ids=lambda value: str(value)
)
def test_one_number_weighs_no_more_than_its_bound(value: float) -> None:
    """A gradient may hold any number. (1,024 stands for eight root mean squares.)"""
    values = np.random.default_rng(4).standard_normal(1000).astype(np.float32)
    values[7] = value
    with np.errstate(all="raise", under="ignore"):
        weights = integer_weights(values)
    assert weights.dtype == np.int16
    assert np.abs(weights.astype(int)).max() <= 1024


def test_nothing_weighs_nothing() -> None:
    for values in (np.zeros(5), np.full(5, np.nan), np.zeros(0)):
        assert not integer_weights(values).any()
        assert sign_sums(np.ones(len(values), np.int8), integer_weights(values)).score == 0.0


def test_arrays_must_fit() -> None:
    with pytest.raises(ValueError, match="weights"):
        sign_sums(np.ones(3, np.int8), np.ones(4, np.int16))


def test_a_made_up_score_is_no_larger_than_what_is_saved() -> None:
    """Of more than 64 bits, one audit kept all nodes from saving what they know of the chain."""
    for total in (1 << 62, -(1 << 62)):
        assert abs(SignSums(total, 1).thousandths) == 1 << 40
