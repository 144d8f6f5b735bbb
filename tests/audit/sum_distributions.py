"""Error rates of a sequential test, computed exactly up to floating point."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from distro_node.protocol.audit.sequential_test import PassTest

# Upper bounds: more audits of one member than ever happen, and more sums than a useful test has (they
# take 8 MiB).
_MAX_AUDITS = 1 << 20
_MOST_SUMS = 1 << 20


class StepSumDistribution:
    """Distribution of a test's sum after some independent, identically distributed steps.

    It carries the probability of every reachable sum, so floating point is the only approximation.
    Accusation is absorbing.
    """

    def __init__(self, accuse_at: int, clear_at: int, probabilities: Mapping[int, float]) -> None:
        """The bounds are as in `SequentialTest`; `probabilities` has the probability of each step, and
        they sum to 1.

        Raises `ValueError` for more than 2^20 open sums.
        """
        if accuse_at - clear_at > _MOST_SUMS:
            raise ValueError(f"more than {_MOST_SUMS} open sums")
        self._probabilities = probabilities
        # Probabilities of the sums strictly between the bounds.
        self._open = np.zeros(accuse_at - clear_at - 1)
        self._zero = -clear_at - 1
        self._open[self._zero] = 1.0
        self.accused = 0.0
        """The probability of having been accused by now."""
        self.steps = 0
        """The number of steps so far."""

    def advance(self, times: int = 1) -> float:
        """Advance by `times` steps, 2^20 at most in total, and return the probability of accusation.

        Raises `ValueError` for more.
        """
        if not 0 <= times <= _MAX_AUDITS - self.steps:
            raise ValueError(f"more than {_MAX_AUDITS} steps")
        for _ in range(times):
            after = np.zeros_like(self._open)
            for step, probability in self._probabilities.items():
                far = min(abs(step), len(after))
                if step > 0:
                    after[far:] += probability * self._open[: len(after) - far]
                    self.accused += probability * float(self._open[len(after) - far :].sum())
                else:
                    after[: len(after) - far] += probability * self._open[far:]
                    after[self._zero] += probability * float(self._open[:far].sum())
            self._open = after
            self.steps += 1
        return self.accused


class AuditSumDistribution(StepSumDistribution):
    """Distribution of a member's sum when each audit fails with one fixed probability."""

    def __init__(self, test: PassTest, fails: float) -> None:
        """`fails` is that probability. Raises `ValueError` unless 0 ≤ `fails` ≤ 1, and for a test with
        more than 2^20 open sums."""
        if not 0 <= fails <= 1:
            raise ValueError("fails must be a probability")
        probabilities = {test.failure: fails, test.success: 1 - fails}
        super().__init__(test.accuse_at, test.clear_at, probabilities)


def audits_until(test: PassTest, fails: float, share: float, most: int) -> int | None:
    """Return the number of audits after which a fraction `share` of the members that fail at rate
    `fails` is accused; None if more than `most`."""
    distribution = AuditSumDistribution(test, fails)
    for _ in range(most):
        if distribution.advance() >= share:
            return distribution.steps
    return None
