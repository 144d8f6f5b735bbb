"""How a member stands: accused once and for as long as it takes, cleared by work, believed again."""

from __future__ import annotations

import random

from distro_node.protocol.checks.standing import WORD, WORK, Standing, Standings, level_test

LEVELS = level_test(250)


def test_three_failures_accuse_and_updates_count_no_more() -> None:
    standings = Standings()
    for _ in range(2):
        standings = standings.checked(failed=True)
        assert standings.counts
        assert standings.credible
    standings = standings.checked(failed=True)
    assert not standings.counts
    assert not standings.credible


def test_a_failure_now_and_then_accuses_nobody() -> None:
    standings = Standings()
    for number in range(3000):
        standings = standings.checked(failed=number % 300 == 0)
        assert standings.credible


def test_whoever_is_accused_is_cleared_by_as_much_work_as_the_sum_says() -> None:
    standing = Standing().after(WORK, 10**9)
    assert standing == Standing(WORK.accuse_at, accused=True)
    needed = -(-WORK.accuse_at // -WORK.success)
    for number in range(1, needed + 1):
        assert standing.accused
        standing = standing.after(WORK, WORK.success)
        if number == needed // 2:
            # Another failure on the way costs that much again.
            again = standing.after(WORK, WORK.failure)
            assert again.sum == min(WORK.accuse_at, standing.sum + WORK.failure)
    assert standing == Standing()


def test_nobody_saves_up_a_good_name() -> None:
    standing = Standing()
    for _ in range(10_000):
        standing = standing.after(WORK, WORK.success)
        assert WORK.clear_at < standing.sum <= 0


def test_half_of_the_work_takes_the_votes_and_not_the_updates() -> None:
    standings = Standings()
    for _ in range(20):
        standings = standings.scored(LEVELS, 500)
    assert standings.counts
    assert not standings.credible
    for _ in range(40):
        standings = standings.scored(LEVELS, 1000)
    assert standings.credible


def test_a_word_that_others_contradict_is_not_believed() -> None:
    honest, liar = Standings(), Standings()
    chance = random.Random(2)
    for _ in range(1000):
        honest = honest.looked(contradicted=chance.random() < 0.025)
        assert honest.credible
    looks = 0
    while liar.credible:
        liar = liar.looked(contradicted=True)
        looks += 1
    assert looks == -(-WORD.accuse_at // WORD.failure)
    # What it computes counts.
    assert liar.counts


def test_one_failure_is_enough_for_a_stranger() -> None:
    assert not Standings().turned_away().counts
