"""The learning rate of a round, the same to the last bit on every machine.

It scales the change of every member's parameters, so it is computed in rational arithmetic and rounded
only once, to float32.
"""

from __future__ import annotations

import math
from fractions import Fraction

from ..wire.manifest import ScheduleSpec

_BITS = 128
# π in units of 2⁻¹²⁸, rounded down.
_PI = 0x3_243F6A88_85A308D3_13198A2E_03707344


def learning_rate(schedule: ScheduleSpec, round_number: int) -> float:
    """Return the learning rate of a round, counted from 1; a float that float32 represents exactly.

    It rises linearly to `peak` in round `warmup_rounds`, reaches `final` × `peak` in round
    `total_rounds`, and stays there. With the shape `wsd` it stays at the peak and falls linearly over
    the last `decay_rounds`; without decay rounds it does not fall. With `linear` and `cosine` it falls
    from the end of the warm-up on.

    Raises `ValueError` for a round below 1.
    """
    if round_number < 1:
        raise ValueError(f"rounds count from 1, not {round_number}")
    peak = Fraction(schedule.peak)
    whole = schedule.total_rounds - schedule.warmup_rounds
    decay = schedule.decay_rounds if schedule.shape == "wsd" else whole
    decay_start = schedule.total_rounds - decay
    if round_number < schedule.warmup_rounds:
        return nearest_float32(peak * round_number / schedule.warmup_rounds)
    if decay == 0 or round_number <= decay_start:
        return nearest_float32(peak)
    done = Fraction(min(round_number - decay_start, decay), decay)
    if schedule.shape == "cosine":
        done = (1 - cosine(done)) / 2
    return nearest_float32(peak * (1 - done * (1 - Fraction(schedule.final))))


def cosine(half_turns: Fraction) -> Fraction:
    """Return cos(π·`half_turns`) for 0 to 1, in multiples of 2⁻¹²⁸, with an error below 2⁻¹²⁰.

    It is the Taylor series with each term rounded down, in integer arithmetic alone, so that every
    machine gets the same result.
    """
    if half_turns > Fraction(1, 2):
        return -cosine(1 - half_turns)
    angle = _PI * half_turns.numerator // half_turns.denominator
    square = angle * angle >> _BITS
    term = total = 1 << _BITS
    sign, count = 1, 0
    while term:
        count += 2
        term = (term * square >> _BITS) // (count * (count - 1))
        sign = -sign
        total += sign * term
    return Fraction(total, 1 << _BITS)


def nearest_float32(value: Fraction) -> float:
    """Return the float32 nearest to `value`, ties to even, in one rounding (not by way of float64).

    Raises `OverflowError` if it is too large for float32.
    """
    if value == 0:
        return 0.0
    magnitude = abs(value)
    # Find the exponent with 2^exponent <= magnitude < 2^(exponent + 1). Bit lengths give it or one more.
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
