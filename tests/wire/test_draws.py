"""Weighted draws: in proportion to weights, the same on all machines, and moved by nobody's absence."""

from __future__ import annotations

import math
from collections import Counter

from distro_node.crypto.hashing import content_id
from distro_node.protocol.util.draws import draw, exponential, ranked
from hypothesis import given
from hypothesis import strategies as st

NAMES = [content_id(b"%d" % number) for number in range(10)]
SEEDS = [b"seed %d" % number for number in range(4000)]


@given(st.integers(1, 2**128 - 1))
def test_it_is_minus_the_logarithm_of_the_fraction(drawn: int) -> None:
    exact = 128 - math.log2(drawn)
    assert abs(exponential(drawn) / 2**40 - exact) < 2**-18


@given(st.integers(1, 2**128 - 2))
def test_a_larger_fraction_has_no_larger_number(drawn: int) -> None:
    assert exponential(drawn + 1) <= exponential(drawn)


def test_numbers_are_the_same_on_all_machines() -> None:
    assert exponential(1) == 128 << 40
    assert exponential(1 << 127) == 1 << 40
    assert exponential(3 << 126) == 456_338_556_421
    assert exponential(0xDEADBEEF << 96) == 221_200_973_919
    assert exponential((1 << 128) - 1) == 1


def test_each_is_drawn_in_proportion_to_its_weight() -> None:
    weights = {name: 1 + number for number, name in enumerate(NAMES)}
    drawn = Counter(draw(weights, seed) for seed in SEEDS)
    for name, weight in weights.items():
        expected = len(SEEDS) * weight / 55
        assert abs(drawn[name] - expected) < 5 * math.sqrt(expected)


def test_who_is_away_gives_up_its_own_draws_and_no_others() -> None:
    weights = {name: 1 + number for number, name in enumerate(NAMES)}
    for seed in SEEDS[:300]:
        winner = draw(weights, seed)
        for gone in NAMES:
            rest = {name: weight for name, weight in weights.items() if name != gone}
            assert draw(rest, seed) == winner or gone == winner


def test_nobody_is_drawn_without_a_weight() -> None:
    assert draw({}, b"seed") is None
    assert draw({NAMES[0]: 0}, b"seed") is None
    assert {draw({NAMES[0]: 0, NAMES[1]: 3}, seed) for seed in SEEDS[:50]} == {NAMES[1]}


def test_the_order_is_drawn_by_the_seed() -> None:
    assert sorted(ranked(NAMES, b"a")) == sorted(NAMES)
    assert ranked(NAMES, b"a") == ranked(reversed(NAMES), b"a")
    assert ranked(NAMES, b"a") != ranked(NAMES, b"b")
