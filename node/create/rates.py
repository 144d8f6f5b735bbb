"""Learning rates that were best in benchmarks: the default, and the warning about a rate far from it.

The best rate falls with the size of a model. The measurements are in benchmarks/results. The largest
model in either table and its rate are from the DisTrO report; no model that large was measured here.
"""

from __future__ import annotations

import itertools
import math

from ...protocol.wire.manifest import ScheduleSpec, Step

# For each kind of step: number of parameters, and the best peak rate among those tried
# (2026-11-22-convergence.json, 2026-11-27-rates-default.json). With scaled steps the best rate is
# between 4e-3 and 8e-3 for both measured sizes, and nearer to 4e-3 in longer runs (docs/research.md).
_BEST_RATES: dict[Step, tuple[tuple[int, float], ...]] = {
    "sign": ((139_584, 8e-3), (918_656, 6e-3), (1_204_615_168, 4e-4)),
    "scaled": ((139_584, 5e-3), (918_656, 5e-3), (1_204_615_168, 4e-4)),
}
# A rate is far from the best if it differs by more than this factor. Being off by a factor of 2, the
# distance between the measured rates, costs a few percent; further off, runs diverge or hardly learn.
_FAR_FACTOR = 5.0


def default_rate(parameters: int, step: Step, local_steps: int = 1) -> float:
    """Return the peak rate to start with for a model of this size, interpolated between the
    measurements. With local steps it is the sum of theirs: each has the rate that a round of one step
    has (2026-11-29-local-steps.json).

    It is rounded to two digits, so that messages and manifest have the same number.
    """
    if local_steps > 1:
        return min(1.0, float(f"{default_rate(parameters, step) * local_steps:.2g}"))
    found = _BEST_RATES[step]
    size = min(max(parameters, found[0][0]), found[-1][0])
    for (small, high), (large, low) in itertools.pairwise(found):
        if size <= large:
            fraction = math.log(size / small) / math.log(large / small)
            return float(f"{high * (low / high) ** fraction:.2g}")
    return found[-1][1]


def rate_warning(
    schedule: ScheduleSpec, parameters: int, step: Step, local_steps: int = 1
) -> str | None:
    """Return a warning about a schedule's peak rate; None if it is close to `default_rate`."""
    best = default_rate(parameters, step, local_steps)
    if best / _FAR_FACTOR <= schedule.peak <= best * _FAR_FACTOR:
        return None
    which = "above" if schedule.peak > best else "below"
    return (
        f"the learning rate of {schedule.peak:g} is {which} the best one in benchmarks, which is about "
        f"{best:g} for {parameters:,} parameters (`peak` in [schedule])"
    )
