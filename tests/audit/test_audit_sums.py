"""Reputation of a member: accused once and for as long as it takes, cleared by work, believed again."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from audit.sum_distributions import StepSumDistribution
from distro_node.protocol.audit.audit_sums import (
    AUDITOR_TEST,
    WORK_TEST,
    AuditSum,
    AuditSums,
    halves_test,
    level_test,
)
from distro_node.protocol.audit.sequential_test import LevelTest
from distro_node.protocol.audit.verdict import Halves

LEVELS, HALVES = level_test(250), halves_test(250)


def test_three_failures_accuse_and_updates_count_no_more() -> None:
    standings = AuditSums()
    for _ in range(2):
        standings = standings.audited(failed=True)
        assert standings.updates_count
        assert standings.credible
    standings = standings.audited(failed=True)
    assert not standings.updates_count
    assert not standings.credible


def test_a_failure_now_and_then_accuses_nobody() -> None:
    standings = AuditSums()
    for number in range(3000):
        standings = standings.audited(failed=number % 300 == 0)
        assert standings.credible


def test_who_is_accused_is_cleared_by_as_much_work_as_the_sum_requires() -> None:
    standing = AuditSum().after(WORK_TEST, 10**9)
    assert standing == AuditSum(WORK_TEST.accuse_at, accused=True)
    needed = -(-WORK_TEST.accuse_at // -WORK_TEST.success)
    for number in range(1, needed + 1):
        assert standing.accused
        standing = standing.after(WORK_TEST, WORK_TEST.success)
        if number == needed // 2:
            # Another failure on the way adds as much again.
            again = standing.after(WORK_TEST, WORK_TEST.failure)
            assert again.sum == min(WORK_TEST.accuse_at, standing.sum + WORK_TEST.failure)
    assert standing == AuditSum()


def test_nobody_saves_up_a_good_name() -> None:
    standing = AuditSum()
    for _ in range(10_000):
        standing = standing.after(WORK_TEST, WORK_TEST.success)
        assert WORK_TEST.clear_at < standing.sum <= 0


def test_half_of_the_work_takes_the_votes_and_not_the_updates() -> None:
    standings = AuditSums()
    for _ in range(35):
        standings = standings.scored(LEVELS, 500)
    assert standings.updates_count
    assert not standings.credible
    for _ in range(40):
        standings = standings.scored(LEVELS, 1000)
    assert standings.credible


@pytest.mark.parametrize("missing", ["first", "second"])
def test_who_computes_one_half_of_each_sequence_has_no_votes(missing: str) -> None:
    """With the measured scatter (docs/audits.md)."""
    chance, test = random.Random(4), halves_test(210)
    audits, standings = 0, AuditSums()
    while standings.complete:
        level = max(500, min(1500, round(chance.gauss(450, 350))))
        halves = Halves(level, 2000 - level) if missing == "first" else Halves(2000 - level, level)
        standings = standings.halved(test, halves)
        audits += 1
    assert audits <= 20
    assert standings.updates_count
    assert not standings.credible
    for _ in range(20):
        standings = standings.halved(test, Halves(1000, 1000))
    assert standings.credible


def test_the_honest_have_both_halves_however_they_scatter() -> None:
    chance, standings = random.Random(5), AuditSums()
    for _ in range(20_000):
        first = max(500, min(1500, round(chance.gauss(1000, 300))))
        standings = standings.halved(HALVES, Halves(first, 2000 - first))
        assert standings.credible


def test_halves_scatter_less_than_scores_but_never_hardly_at_all() -> None:
    assert halves_test(250).deviation == 200
    assert halves_test(1).deviation == halves_test(200).deviation == 160


def accused_by_liars(test: LevelTest, share: float, audits: int) -> float:
    """Return the probability that an honest member is accused within `audits` audits, a fraction `share`
    of which are liars' with the worst passing score. Sums are followed in steps of 20; honest scores
    scatter by a fifth."""
    grid = np.arange(0, 2001, 5)
    odds = np.exp(-(((grid - 1000) / 200) ** 2) / 2)
    said = [(test.step(0), share)]
    said += [
        (test.step(int(level)), p * (1 - share))
        for level, p in zip(grid, odds / odds.sum(), strict=True)
    ]
    masses: dict[int, float] = defaultdict(float)
    for step, mass in said:
        masses[round(step / 20)] += mass
    return StepSumDistribution(test.accuse_at // 20, test.clear_at // 20, masses).advance(audits)


def test_a_third_of_all_audits_takes_hardly_anybodys_votes() -> None:
    """By barely passing scores, which are not re-audited, or by halves that they claim are missing."""
    assert accused_by_liars(LEVELS, 1 / 3, 1000) < 1e-3
    assert accused_by_liars(HALVES, 1 / 3, 1000) < 2e-2
    assert accused_by_liars(HALVES, 1 / 4, 1000) < 1e-3
    assert accused_by_liars(HALVES, 1 / 10, 1000) < 1e-6
    # Without a lower bound on scores they would take nearly all.
    assert accused_by_liars(replace(LEVELS, least=500), 1 / 3, 1000) > 0.9


def test_an_auditor_that_others_contradict_is_not_believed() -> None:
    honest, liar = AuditSums(), AuditSums()
    chance = random.Random(2)
    for _ in range(1000):
        honest = honest.audited_another(contradicted=chance.random() < 0.025)
        assert honest.credible
    audits = 0
    while liar.credible:
        liar = liar.audited_another(contradicted=True)
        audits += 1
    assert audits == -(-AUDITOR_TEST.accuse_at // AUDITOR_TEST.failure)
    # Its updates still count.
    assert liar.updates_count


def test_one_failure_is_enough_for_a_stranger() -> None:
    assert not AuditSums().dismissed().updates_count
