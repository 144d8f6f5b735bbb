"""Audit scores as they were measured, for benchmarks that play the rules of audits without training.

Scores come from normal distributions, with the correlations of the sequences of one update and of two
members' audits of one sequence (`results/2026-11-26-checks.json`, 0.9M parameters).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from distro_node.protocol.audit.audit_sums import level_test

SHARE = 16
"""Sequences of a member in a round, for which the scores stand."""
EVERY = 5
"""Rounds between two audits by one member: 3 % of its compute, as an audit takes as long as 2.3
sequences."""
WORKED, IDLE = (14.6, 3.0), (1.0, 3.4)
"""Mean and deviation of honest scores, and of those of training on other data."""
ONE_SEQUENCE, ONE_AUDIT = 0.16, 0.71
"""Correlations: of the sequences of one update, and of two audits of one sequence."""
FALLS = 0.385
"""The power of the share with which honest scores fall: at 0.14M they are 10.4 for one sequence, and
6.1 for four. `audit/verdict` assumes that the usual score falls with the square root."""
LEVELS = level_test(250)


@dataclass
class UpdateScores:
    """The random components of one update's scores."""

    worked: bool
    common: float
    sequences: dict[int, float] = field(default_factory=dict)

    def drawn(self, chance: random.Random, share: int, sequence: int) -> int:
        """Return one audit's score of a sequence, in thousandths; `share`: the update's sequences."""
        mean, deviation = WORKED if self.worked else IDLE
        falls = (SHARE / share) ** FALLS if self.worked else 1.0
        parts = (
            (ONE_SEQUENCE, self.common),
            (ONE_AUDIT - ONE_SEQUENCE, self.sequences.setdefault(sequence, chance.gauss(0, 1))),
            (1 - ONE_AUDIT, chance.gauss(0, 1)),
        )
        return round(
            1000 * falls * (mean + deviation * sum(part**0.5 * value for part, value in parts))
        )
