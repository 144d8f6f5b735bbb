"""Learning rates that benchmarks found best, and a word for one that is far from them.

The best rate falls with the size of a model. The measurements are in benchmarks/results (convergence);
the last point is the DisTrO report's, and nothing that large has been tried here.
"""

from __future__ import annotations

import itertools
import math

from ...protocol.wire.manifest import ScheduleSpec

# Parameters, and the best peak rate among those tried with a sign step. With a scaled one, as far as it
# has been tried, it is the same or a third less (docs/research.md).
_FOUND = ((139_584, 8e-3), (918_656, 6e-3), (1_204_615_168, 4e-4))
# Neighbouring rates that were tried are a factor of 2 apart, and cost a few percent; further off, runs
# diverge or hardly learn.
_FAR = 5.0
# What nobody has chosen may as well be near.
_UNSAID_FAR = 1.5


def usual_rate(parameters: int) -> float:
    """The rate to begin with for a model of this size: a line through what was found."""
    size = min(max(parameters, _FOUND[0][0]), _FOUND[-1][0])
    for (small, high), (large, low) in itertools.pairwise(_FOUND):
        if size <= large:
            way = math.log(size / small) / math.log(large / small)
            return high * (low / high) ** way
    return _FOUND[-1][1]


def rate_warning(schedule: ScheduleSpec, parameters: int, *, said: bool) -> str | None:
    """What to say about a schedule's peak rate; None if it is near what was found. `said`: by the
    founder, and not just taken because nothing was."""
    usual = usual_rate(parameters)
    far = _FAR if said else _UNSAID_FAR
    if usual / far <= schedule.peak <= usual * far:
        return None
    found = f"{usual:.2g} for {parameters:,} parameters (`peak` in [schedule])"
    if not said:
        return (
            f"the file does not say how high the learning rate goes, so it is {schedule.peak:g}; what "
            f"learned best in benchmarks is about {found}"
        )
    which = "above" if schedule.peak > usual else "below"
    return (
        f"the learning rate of {schedule.peak:g} is {which} what learned best in benchmarks: about "
        f"{found}"
    )
