"""Token buckets: no key uses more than its burst and its rate."""

from __future__ import annotations

import pytest
from distro_node.protocol.util.token_bucket import TokenBuckets, TokenRate
from hypothesis import given
from hypothesis import strategies as st

FEW = TokenRate(at_once=4.0, per_second=0.5)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 4)), max_size=60))
def test_in_no_span_of_time_is_more_used_than_the_allowance(steps: list[tuple[int, int]]) -> None:
    budgets: TokenBuckets[str] = TokenBuckets(2)
    now, taken = 0.0, list[tuple[float, int]]()
    for pause, amount in steps:
        now += pause
        if budgets.take("a", FEW, now, amount):
            taken.append((now, amount))
    for index, (begin, _) in enumerate(taken):
        used = 0
        for then, amount in taken[index:]:
            used += amount
            assert used <= FEW.at_once + (then - begin) * FEW.per_second


def test_who_asks_for_too_much_has_used_nothing() -> None:
    budgets: TokenBuckets[str] = TokenBuckets(2)
    assert not budgets.take("a", FEW, 0.0, 5.0)
    assert budgets.balance("a", FEW, 0.0) == 4.0
    assert [budgets.take("a", FEW, 0.0) for _ in range(5)] == [True] * 4 + [False]
    assert budgets.balance("a", FEW, 3.0) == 1.5


def test_what_is_given_back_may_be_used_again_and_saves_up_nothing() -> None:
    budgets: TokenBuckets[str] = TokenBuckets(2)
    budgets.take("a", FEW, 0.0, 3.0)
    budgets.give("a", FEW, 0.0)
    assert budgets.balance("a", FEW, 0.0) == 2.0
    budgets.give("a", FEW, 0.0, 10.0)
    assert budgets.balance("a", FEW, 100.0) == FEW.at_once


@pytest.mark.parametrize("others", [2, 10])
def test_who_asks_in_vain_is_not_forgotten(others: int) -> None:
    budgets: TokenBuckets[int] = TokenBuckets(2)
    assert budgets.take(0, FEW, 0.0, 4.0)
    for other in range(1, others):
        assert budgets.take(other, FEW, 0.0)
        assert not budgets.take(0, FEW, 0.0)
        assert len(budgets) == 2
