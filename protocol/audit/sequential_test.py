"""Wald's sequential probability ratio test over a member's audits, in integer arithmetic.

An audit passes or fails, and has a score. Honest work fails now and then (a sequence with little to
learn changes an update little), so one failure proves nothing; a member that does not do the work fails
often, and one that does half of it scores lower. A test sums the log likelihood ratios of the results
under the dishonest and the honest hypothesis (A. Wald, "Sequential Tests of Statistical Hypotheses",
Annals of Mathematical Statistics 16, 1945), and decides as soon as the sum leaves an interval; no test
with the same error rates needs fewer audits on average. A cleared member restarts at zero, so that a
long honest record cannot be saved up and spent on cheating (E. S. Page, "Continuous Inspection Schemes",
Biometrika 41, 1954). Spot checks whose results make up a worker's credibility are L. Sarmenta's
("Sabotage-Tolerance Mechanisms for Volunteer Computing Systems", 2002).

Logarithms are rounded to thousandths and sums are integers, so two members that know the same results
compute the same reputation. The resulting error rates can be computed, up to floating point
(`tests/audit/sum_distributions.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal

Decision = Literal["open", "cleared", "accused"]

# Thousandths of a natural logarithm.
_UNIT = 1000


@dataclass(frozen=True, kw_only=True)
class SequentialTest:
    """Error rates of a test, and the bounds of the sum that follow from them.

    Both rates are above 0 and below 1, and their sum is below 1; other values raise `ValueError`.
    """

    accused_wrongly: Fraction
    """Rate at which honest members are accused before they are cleared."""
    missed: Fraction
    """Rate at which dishonest members are cleared once before they are accused."""

    def __post_init__(self) -> None:
        _check_probabilities(accused_wrongly=self.accused_wrongly, missed=self.missed)
        if self.accused_wrongly + self.missed >= 1:
            raise ValueError("the sum of accused_wrongly and missed must be below 1")

    @cached_property
    def accuse_at(self) -> int:
        """The sum at which a member is accused: Wald's upper bound, in thousandths."""
        return _logarithm((1 - self.missed) / self.accused_wrongly)

    @cached_property
    def clear_at(self) -> int:
        """The sum at which a member is cleared: Wald's lower bound, in thousandths."""
        return _logarithm(self.missed / (1 - self.accused_wrongly))

    def moved(self, total: int, step: int) -> tuple[int, Decision]:
        """Return the sum after one more step, and the decision; `total` is the sum before it. A cleared
        member's sum returns to 0.

        Raises `ValueError` for a sum outside the open interval.
        """
        if not self.clear_at < total < self.accuse_at:
            raise ValueError(
                f"a sum of {total} is outside the open interval: it is decided already"
            )
        total += step
        if total >= self.accuse_at:
            return self.accuse_at, "accused"
        if total <= self.clear_at:
            return 0, "cleared"
        return total, "open"


@dataclass(frozen=True, kw_only=True)
class PassTest(SequentialTest):
    """Test for members that do not do the work, or not always, by how many of their audits fail.

    Raises `ValueError` unless `honest_fails` is sufficiently below `idle_fails`.
    """

    honest_fails: Fraction
    """Upper bound on the rate at which audits of honest work fail."""
    idle_fails: Fraction
    """Lower bound on the rate at which audits of idle members fail."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_probabilities(honest_fails=self.honest_fails, idle_fails=self.idle_fails)
        if self.honest_fails >= self.idle_fails:
            raise ValueError("honest_fails must be below idle_fails")
        if self.failure <= 0 or self.success >= 0:
            raise ValueError("honest_fails and idle_fails are too close together")

    @cached_property
    def failure(self) -> int:
        """What a failed audit adds to the sum, in thousandths: above 0."""
        return _logarithm(self.idle_fails / self.honest_fails)

    @cached_property
    def success(self) -> int:
        """What a passed audit adds to the sum, in thousandths: below 0."""
        return _logarithm((1 - self.idle_fails) / (1 - self.honest_fails))

    def after(self, total: int, *, failed: bool) -> tuple[int, Decision]:
        """Return the sum after one more audit, and the decision; `total` is the sum before it."""
        return self.moved(total, self.failure if failed else self.success)


@dataclass(frozen=True, kw_only=True)
class LevelTest(SequentialTest):
    """Test for members that do only a part of the work, by how high their scores are.

    Scores, their bounds and their deviation are in thousandths of the usual score for a share of that
    size (`verdict.level`). It is Wald's test of a normal distribution's mean. Steps are bounded, so that
    no single score decides. Raises `ValueError` unless 0 < low < usual, `deviation` and `most` are above
    0, and `least` is below the midpoint of low and usual.
    """

    usual: int
    """Lower bound on the mean of honest scores: somewhat below 1,000."""
    low: int
    """Upper bound on the mean score of members that the test must find."""
    deviation: int
    """The standard deviation of honest scores."""
    most: int
    """The largest step of the sum in either direction, in thousandths of a natural logarithm."""
    least: int = 0
    """Floor for scores, which limits how much one score can count against a member."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.low < self.usual:
            raise ValueError("low must be above 0 and below usual")
        if 2 * self.least >= self.low + self.usual:
            raise ValueError("least must be below the middle of low and usual")
        if self.deviation <= 0 or self.most <= 0:
            raise ValueError("deviation and most must be above 0")

    def step(self, level: int) -> int:
        """Return what a score adds to the sum: the log likelihood ratio, in thousandths and bounded.
        `level` is the score.

        For deviation σ it is (low - usual) / σ² · (level - (low + usual) / 2).
        """
        level = max(level, self.least)
        whole = _UNIT * (self.low - self.usual) * (2 * level - self.low - self.usual)
        # Rounded to the nearest, in integers.
        step = (whole + self.deviation**2) // (2 * self.deviation**2)
        return max(-self.most, min(self.most, step))

    def after(self, total: int, level: int) -> tuple[int, Decision]:
        """Return the sum after one more audit, and the decision; `total` is the sum before it."""
        return self.moved(total, self.step(level))


def _check_probabilities(**named: Fraction) -> None:
    for name, value in named.items():
        if not 0 < value < 1:
            raise ValueError(f"{name} must be above 0 and below 1")


def _logarithm(ratio: Fraction) -> int:
    """Return the natural logarithm in thousandths, rounded to the nearest."""
    # Separately for both parts: a fraction may be smaller than any float.
    return round(_UNIT * (math.log(ratio.numerator) - math.log(ratio.denominator)))
