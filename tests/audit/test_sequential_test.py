"""Wald's test: its errors compared with exact counts and his bounds; no credit accumulates."""

from __future__ import annotations

import dataclasses
import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from audit.sum_distributions import AuditSumDistribution, audits_until
from distro_node.protocol.audit.sequential_test import (
    LevelTest,
    PassTest,
)

STRICT = PassTest(
    honest_fails=Fraction(1, 100),
    idle_fails=Fraction(1, 5),
    accused_wrongly=Fraction(1, 10**6),
    missed=Fraction(1, 100),
)
SHORT = PassTest(
    honest_fails=Fraction(1, 10),
    idle_fails=Fraction(1, 2),
    accused_wrongly=Fraction(1, 20),
    missed=Fraction(1, 10),
)


def test_bounds_and_steps_are_walds() -> None:
    assert SHORT.failure == round(1000 * math.log(5))
    assert SHORT.success == round(1000 * math.log(0.5 / 0.9))
    assert SHORT.accuse_at == round(1000 * math.log(0.9 / 0.05))
    assert SHORT.clear_at == round(1000 * math.log(0.1 / 0.95))


def test_standings_are_those_of_every_single_course() -> None:
    """Compared with all 2¹² courses of twelve audits, each with its binomial probability."""
    fails = 0.3
    accused = 0.0
    for course in itertools.product((False, True), repeat=12):
        standing, probability, found = 0, 1.0, False
        for failed in course:
            probability *= fails if failed else 1 - fails
            if not found:
                standing, decision = SHORT.after(standing, failed=failed)
                found = decision == "accused"
        accused += probability * found
    assert AuditSumDistribution(SHORT, fails).advance(12) == pytest.approx(accused, rel=1e-12)


def test_before_anything_can_be_cleared_it_is_the_binomial_tail() -> None:
    """Before the first decision a sum depends only on the number of failures."""
    needed = math.ceil(STRICT.accuse_at / STRICT.failure)
    exactly = 0.2**needed
    assert AuditSumDistribution(STRICT, 0.2).advance(needed) == pytest.approx(exactly, rel=1e-12)
    assert AuditSumDistribution(STRICT, 0.2).advance(needed - 1) == 0.0


@pytest.mark.parametrize("test", [STRICT, SHORT])
def test_errors_of_one_test_are_within_walds_bounds(test: PassTest) -> None:
    """Accused before the first clearing: at most α / (1 - β) of the honest, and of the dishonest at
    least what is left after β / (1 - α). Here clearing ends a course instead of restarting it."""

    def accused_first(fails: float) -> float:
        open_, accused = {0: 1.0}, 0.0
        for _ in range(3000):
            after: dict[int, float] = {}
            for standing, share in open_.items():
                for failed, part in ((True, fails), (False, 1 - fails)):
                    reached, decision = test.after(standing, failed=failed)
                    if decision == "accused":
                        accused += share * part
                    elif decision == "open":
                        after[reached] = after.get(reached, 0.0) + share * part
            open_ = after
        return accused

    rounding = 1.01
    alpha, beta = float(test.accused_wrongly), float(test.missed)
    assert 0 < accused_first(float(test.honest_fails)) <= rounding * alpha / (1 - beta)
    assert accused_first(float(test.idle_fails)) >= 1 - rounding * beta / (1 - alpha)


def test_the_honest_are_hardly_ever_accused_and_the_idle_soon() -> None:
    assert AuditSumDistribution(STRICT, 1e-3).advance(10_000) < 1e-6
    assert audits_until(STRICT, 1.0, 0.5, 20) == math.ceil(STRICT.accuse_at / STRICT.failure)
    median = audits_until(STRICT, 0.5, 0.5, 100)
    assert median is not None
    assert median <= 20
    assert audits_until(STRICT, 0.0, 0.5, 200) is None


def test_nobody_saves_up_a_good_name() -> None:
    """After a thousand passed audits, failures count as on the first day."""

    def until_accused(standing: int) -> int:
        for count in itertools.count(1):
            standing, decision = STRICT.after(standing, failed=True)
            if decision == "accused":
                return count
        raise AssertionError

    standing = worst = 0
    for _ in range(1000):
        standing, decision = STRICT.after(standing, failed=False)
        assert decision != "accused"
        worst = max(worst, until_accused(standing))
    most = math.ceil((STRICT.accuse_at - STRICT.clear_at) / STRICT.failure)
    assert until_accused(0) < worst <= most


@pytest.mark.parametrize(
    "changed",
    [
        {"honest_fails": Fraction(0)},
        {"idle_fails": Fraction(1)},
        {"accused_wrongly": Fraction(3, 2)},
        {"missed": Fraction(-1, 2)},
        {"honest_fails": Fraction(1, 5)},
        {"idle_fails": Fraction(100_001, 10_000_000)},
        {"accused_wrongly": Fraction(1, 2), "missed": Fraction(1, 2)},
    ],
)
def test_what_is_no_test_is_refused(changed: dict[str, Fraction]) -> None:
    usual = {
        "honest_fails": Fraction(1, 100),
        "idle_fails": Fraction(1, 5),
        "accused_wrongly": Fraction(1, 1000),
        "missed": Fraction(1, 100),
    }
    with pytest.raises(ValueError, match=r"must be|too close"):
        PassTest(**(usual | changed))


def test_probabilities_below_any_float_are_taken() -> None:
    tiny = PassTest(
        honest_fails=Fraction(1, 10**400),
        idle_fails=Fraction(1, 2),
        accused_wrongly=Fraction(1, 10**500),
        missed=Fraction(1, 100),
    )
    assert tiny.accuse_at == round(1000 * (500 * math.log(10) + math.log(0.99)))


def test_decided_standings_and_endless_courses_are_refused() -> None:
    with pytest.raises(ValueError, match="decided"):
        STRICT.after(STRICT.accuse_at, failed=True)
    with pytest.raises(ValueError, match="decided"):
        STRICT.after(STRICT.clear_at, failed=False)
    with pytest.raises(ValueError, match="more than"):
        AuditSumDistribution(STRICT, 0.5).advance(1 << 60)
    with pytest.raises(ValueError, match="probability"):
        AuditSumDistribution(STRICT, math.nan)
    endless = dataclasses.replace(STRICT, accused_wrongly=Fraction(1, 10**1000))
    with pytest.raises(ValueError, match="sums"):
        AuditSumDistribution(endless, 0.5)


LEVEL = LevelTest(
    accused_wrongly=Fraction(1, 10**4),
    missed=Fraction(1, 100),
    usual=950,
    low=750,
    deviation=150,
    most=4000,
)


def test_a_step_is_the_logarithm_of_the_ratio_of_two_normal_densities() -> None:
    for level in range(300, 1400, 7):
        ratio = ((level - 950) ** 2 - (level - 750) ** 2) / (2 * 150**2)
        assert abs(LEVEL.step(level) - 1000 * ratio) <= 0.5 or abs(ratio) > 4
    assert LEVEL.step(850) == 0
    assert LEVEL.step(-(10**30)) == 4000
    assert LEVEL.step(10**30) == -4000


def test_what_is_lower_than_the_least_counts_as_it() -> None:
    test = dataclasses.replace(LEVEL, least=700)
    assert test.step(-(10**30)) == test.step(0) == test.step(699) == test.step(700)
    assert LEVEL.step(699) > LEVEL.step(700) == test.step(700) > test.step(701)
    with pytest.raises(ValueError, match="least must be"):
        dataclasses.replace(LEVEL, least=850)


def test_levels_err_as_seldom_as_they_should() -> None:
    """20,000 honest courses up to the first decision with an error rate of 1 %, and 2,000 low ones."""
    test = dataclasses.replace(LEVEL, accused_wrongly=Fraction(1, 100))
    chance = np.random.default_rng(5)

    def accused_first(mean: float, courses: int) -> float:
        accused = 0
        for _ in range(courses):
            standing, decision = 0, "open"
            while decision == "open":
                standing, decision = test.after(standing, round(chance.normal(mean, 150)))
            accused += decision == "accused"
        return accused / courses

    assert 0.001 < accused_first(950, 10_000) < 0.012
    assert accused_first(750, 2000) > 0.985


def test_no_single_score_decides() -> None:
    standing, decision = LEVEL.after(0, -(10**9))
    assert (standing, decision) == (4000, "open")


@pytest.mark.parametrize(
    "changed", [{"low": 950}, {"low": 0}, {"deviation": 0}, {"most": 0}, {"missed": Fraction(2)}]
)
def test_what_is_no_level_test_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        dataclasses.replace(LEVEL, **changed)
