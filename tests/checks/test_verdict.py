"""What is usual, what passes, and what a second look says."""

from __future__ import annotations

import random

import pytest
from distro_node.protocol.checks.verdict import LEAST, failed, level, passing, usual


def test_the_usual_score_lies_between_honest_ones_while_fewer_than_half_lie() -> None:
    chance = random.Random(1)
    for _ in range(200):
        honest = [[chance.randrange(6000, 9000) for _ in range(5)] for _ in range(6)]
        lies = [[chance.choice((-(10**12), 10**12))] * 1000 for _ in range(5)]
        found = usual([*honest, *lies, []])
        assert min(map(min, honest)) <= found <= max(map(max, honest))
    assert usual([]) == usual([[]]) == 0


def test_half_of_the_usual_passes_but_nothing_that_coins_reach() -> None:
    assert passing(20_000) == 10_000
    assert passing(0) == passing(-(10**9)) == passing(4000) == LEAST


def test_a_level_is_a_part_of_the_usual() -> None:
    assert level(5000, 10_000) == 500
    assert level(-5000, 10_000) == -500
    assert level(5000, 0) == 1000
    assert level(10**30, 1) == -level(-(10**30), 1) == 1 << 40


@pytest.mark.parametrize(
    ("first", "share", "verdict"),
    [
        (4000, [0, 0, 0, 0], False),
        (3999, [], False),
        (3999, [0, 9000, 9000, 9000], False),
        (3999, [0, 0, 9000, 9000], True),
        (-(10**30), [0, -1], True),
        (0, [3999], True),
        (0, [4000], False),
        (0, [0, 0, *[9000] * 10], False),
        (0, [0, 0, 0, *[9000] * 9], True),
    ],
)
def test_two_low_sequences_of_a_share_are_a_failure(
    first: int, share: list[int], verdict: bool
) -> None:
    assert failed(first, share, 4000) is verdict
