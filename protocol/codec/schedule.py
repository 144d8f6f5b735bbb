"""The learning rate of a round, the same to the last bit on every machine.

Every member multiplies its parameters by it, so it is computed in rational arithmetic and rounded
once, to float32.
"""

from __future__ import annotations

import math
from fractions import Fraction

from ..wire.manifest import ScheduleSpec


def learning_rate(schedule: ScheduleSpec, round_number: int) -> float:
    """The learning rate of a round, counted from 1; a float that float32 represents exactly.

    It rises linearly and reaches `peak` in round `warmup_rounds`, stays there, and falls linearly
    over the last `decay_rounds` to `final` × `peak` in round `total_rounds`, where it remains.
    Without decay rounds it stays at the peak.

    Raises `ValueError` for a round below 1.
    """
    if round_number < 1:
        raise ValueError(f"rounds count from 1, not {round_number}")
    peak = Fraction(schedule.peak)
    decay_start = schedule.total_rounds - schedule.decay_rounds
    if round_number < schedule.warmup_rounds:
        return nearest_float32(peak * round_number / schedule.warmup_rounds)
    if schedule.decay_rounds == 0 or round_number <= decay_start:
        return nearest_float32(peak)
    done = Fraction(min(round_number - decay_start, schedule.decay_rounds), schedule.decay_rounds)
    return nearest_float32(peak * (1 - done * (1 - Fraction(schedule.final))))


def nearest_float32(value: Fraction) -> float:
    """The float32 nearest to `value`, ties to even, in one rounding (not by way of float64).

    Raises `OverflowError` if it is too large for float32.
    """
    if value == 0:
        return 0.0
    magnitude = abs(value)
    # 2^exponent <= magnitude < 2^(exponent + 1); bit lengths give it within one.
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    # 24 significant bits; below 2^-126 the numbers are subnormal and the step stays 2^-149.
    step = max(exponent - 23, -149)
    units = round(magnitude / Fraction(2) ** step)
    result = math.ldexp(units, step)
    if result >= 2.0**128:
        raise OverflowError(f"{float(value):g} is too large for float32")
    return math.copysign(result, value)
