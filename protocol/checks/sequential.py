"""What several checks of one member say together: Wald's sequential test, in whole numbers.

A check passes or fails, and has a score. Honest work fails now and then (a sequence in which there is
little to learn moves little), so one failure says nothing; who does not do the work fails often, and
who does half of it scores less. A test adds up the logarithms of how much likelier each result is of
those than of the honest (A. Wald, "Sequential Tests of Statistical Hypotheses", Annals of Mathematical
Statistics 16, 1945), and decides as soon as the sum leaves an interval; no test with the same errors
needs fewer checks on average. Who is cleared begins anew at zero, so nobody saves up a good name and
spends it on lies (E. S. Page, "Continuous Inspection Schemes", Biometrika 41, 1954). Spot checks whose
results follow a worker into its credibility are L. Sarmenta's ("Sabotage-Tolerance Mechanisms for
Volunteer Computing Systems", 2002).

Logarithms are rounded to thousandths, sums are whole: two members that know the same results come to
the same standing. What the errors then are is not approximated but counted (`Standings`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal

import numpy as np

Decision = Literal["open", "cleared", "accused"]

# Thousandths of a natural logarithm.
_UNIT = 1000
# More checks of one member than there will be, and more sums than a test of any use has: 8 MiB of them.
_MOST_CHECKS = 1 << 20
_MOST_SUMS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Errors:
    """How often a test may be wrong, and the bounds of the sum that follow from it.

    Both are probabilities above 0 and below 1, and below 1 together; `ValueError` for others.
    """

    accused_wrongly: Fraction
    """Of those who are as the honest are supposed to be: how many are accused before they are
    cleared."""
    missed: Fraction
    """Of those that are to be found: how many are cleared once before they are accused."""

    def __post_init__(self) -> None:
        _check_probabilities(accused_wrongly=self.accused_wrongly, missed=self.missed)
        if self.accused_wrongly + self.missed >= 1:
            raise ValueError("accused_wrongly and missed must be below 1 together")

    @cached_property
    def accuse_at(self) -> int:
        """The sum with which somebody is accused: Wald's upper bound, in thousandths."""
        return _logarithm((1 - self.missed) / self.accused_wrongly)

    @cached_property
    def clear_at(self) -> int:
        """The sum with which somebody is cleared: Wald's lower bound."""
        return _logarithm(self.missed / (1 - self.accused_wrongly))

    def moved(self, standing: int, step: int) -> tuple[int, Decision]:
        """The sum after one more step, and what is decided by it. Who is cleared stands at 0 again.

        Raises `ValueError` for a sum that no open test has.
        """
        if not self.clear_at < standing < self.accuse_at:
            raise ValueError(f"a standing of {standing} is decided already")
        standing += step
        if standing >= self.accuse_at:
            return self.accuse_at, "accused"
        if standing <= self.clear_at:
            return 0, "cleared"
        return standing, "open"


@dataclass(frozen=True, kw_only=True)
class PassTest(Errors):
    """For who does not do the work at all, or not always: how many checks fail.

    Raises `ValueError` if the honest fail no less than those that are looked for.
    """

    honest_fails: Fraction
    """The most often that a check of honest work fails."""
    idle_fails: Fraction
    """How often at least a check of somebody fails that is to be found."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_probabilities(honest_fails=self.honest_fails, idle_fails=self.idle_fails)
        if self.honest_fails >= self.idle_fails:
            raise ValueError("honest_fails must be below idle_fails")
        if self.failure <= 0 or self.success >= 0:
            raise ValueError("honest_fails and idle_fails are too near each other")

    @cached_property
    def failure(self) -> int:
        """What a failure adds to the sum, in thousandths: above 0."""
        return _logarithm(self.idle_fails / self.honest_fails)

    @cached_property
    def success(self) -> int:
        """What a check that passes adds: below 0."""
        return _logarithm((1 - self.idle_fails) / (1 - self.honest_fails))

    def after(self, standing: int, *, failed: bool) -> tuple[int, Decision]:
        """The sum after one more check."""
        return self.moved(standing, self.failure if failed else self.success)


@dataclass(frozen=True, kw_only=True)
class LevelTest(Errors):
    """For who does a part of the work: how high scores are, in thousandths of what is usual.

    Wald's test of a normal distribution's mean. A step has a bound, so that no single score decides
    anything. Raises `ValueError` unless 0 < low < usual, both others are above 0, and `least` is below
    the middle of low and usual.
    """

    usual: int
    """The mean of honest scores, at least."""
    low: int
    """The mean of the scores of somebody who is to be found, at most."""
    deviation: int
    """The standard deviation of honest scores."""
    most: int
    """The largest step, either way, in thousandths."""
    least: int = 0
    """What is lower counts as this: how much one score may say against somebody."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.low < self.usual:
            raise ValueError("low must be above 0 and below usual")
        if 2 * self.least >= self.low + self.usual:
            raise ValueError("least must be below the middle of low and usual")
        if self.deviation <= 0 or self.most <= 0:
            raise ValueError("deviation and most must be above 0")

    def step(self, level: int) -> int:
        """What a score adds to the sum: ln of the likelihoods' ratio, in thousandths and bounded.

        For deviation σ it is (low - usual) / σ² · (level - (low + usual) / 2).
        """
        level = max(level, self.least)
        whole = _UNIT * (self.low - self.usual) * (2 * level - self.low - self.usual)
        # Rounded to the nearest, in whole numbers.
        step = (whole + self.deviation**2) // (2 * self.deviation**2)
        return max(-self.most, min(self.most, step))

    def after(self, standing: int, level: int) -> tuple[int, Decision]:
        """The sum after one more check."""
        return self.moved(standing, self.step(level))


class Sums:
    """Where the sum of a test may stand after so many independent steps, each drawn with the same odds.

    Every sum there can be is followed with its probability, so nothing is approximated but by floating
    point; an accused one stays accused.
    """

    def __init__(self, accuse_at: int, clear_at: int, odds: Mapping[int, float]) -> None:
        """The bounds as those of `Errors`; `odds` says how probable each step is, and they add up to 1.
        Raises `ValueError` for more than 2^20 open sums."""
        if accuse_at - clear_at > _MOST_SUMS:
            raise ValueError(f"more than {_MOST_SUMS} sums")
        self._odds = odds
        # Of the sums between the bounds, both left out.
        self._open = np.zeros(accuse_at - clear_at - 1)
        self._zero = -clear_at - 1
        self._open[self._zero] = 1.0
        self.accused = 0.0
        """The probability of having been accused by now."""
        self.checks = 0

    def check(self, times: int = 1) -> float:
        """After so many more steps, 2^20 at most altogether: the probability of having been accused.

        Raises `ValueError` for more.
        """
        if not 0 <= times <= _MOST_CHECKS - self.checks:
            raise ValueError(f"at most {_MOST_CHECKS} checks")
        for _ in range(times):
            after = np.zeros_like(self._open)
            for step, odds in self._odds.items():
                far = min(abs(step), len(after))
                if step > 0:
                    after[far:] += odds * self._open[: len(after) - far]
                    self.accused += odds * float(self._open[len(after) - far :].sum())
                else:
                    after[: len(after) - far] += odds * self._open[far:]
                    after[self._zero] += odds * float(self._open[:far].sum())
            self._open = after
            self.checks += 1
        return self.accused


class Standings(Sums):
    """How somebody stands after so many checks, each of which fails with one probability."""

    def __init__(self, test: PassTest, fails: float) -> None:
        """Raises `ValueError` unless 0 ≤ `fails` ≤ 1, and for a test with more than 2^20 open sums."""
        if not 0 <= fails <= 1:
            raise ValueError("fails must be a probability")
        odds = {test.failure: fails, test.success: 1 - fails}
        super().__init__(test.accuse_at, test.clear_at, odds)


def checks_until(test: PassTest, fails: float, share: float, most: int) -> int | None:
    """After how many checks this share of those who fail so often is accused; None if after `most` it
    is not."""
    standings = Standings(test, fails)
    for _ in range(most):
        if standings.check() >= share:
            return standings.checks
    return None


def _check_probabilities(**named: Fraction) -> None:
    for name, value in named.items():
        if not 0 < value < 1:
            raise ValueError(f"{name} must be above 0 and below 1")


def _logarithm(ratio: Fraction) -> int:
    """The natural logarithm in thousandths, rounded to the nearest."""
    # Of both parts: a fraction may be smaller than any float.
    return round(_UNIT * (math.log(ratio.numerator) - math.log(ratio.denominator)))
