"""Weighted draws in which nobody's absence moves anybody else.

With weights on a line and a point drawn on it, whoever leaves the line moves all that stand behind: a
few accomplices that may come and go then choose who is drawn. Here each candidate draws a number of its
own, from a seed and its name, and the smallest number by weight wins: a member that stays away gives up
what it would have won, and changes nothing between the others. (Weighted rendezvous: Efraimidis and
Spirakis, "Weighted random sampling with a reservoir", 2006; Thaler and Ravishankar, 1998.)

The numbers are exponential: minus the logarithm of a fraction that is uniform between 0 and 1, in fixed
point, so that all machines agree on them to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from ...crypto.hashing import content_id

Name = TypeVar("Name", bound=bytes)

_DRAWN_BITS = 128
_FRACTION_BITS = 40
# Between these steps the logarithm is interpolated, with an error of at most 2 to the -18.
_STEP_BITS = 8


def _log2_of(mantissa: int) -> int:
    """Return the logarithm to base 2, in fixed point, of a number from 1 to 2 that is given with 64
    binary digits after the point: digit by digit, by squaring."""
    result = 0
    for _ in range(_FRACTION_BITS):
        mantissa = mantissa * mantissa >> 64
        digit = mantissa >> 65
        result = 2 * result + digit
        mantissa >>= digit
    return result


_LOGS = [_log2_of((1 << 64) + (step << 64 - _STEP_BITS)) for step in range(1 << _STEP_BITS)]
_LOGS.append(1 << _FRACTION_BITS)


def exponential(drawn: int) -> int:
    """Return minus the logarithm to base 2 of the fraction `drawn` / 2^128, with 40 binary digits after
    the point. `drawn` is from 1 to 2^128 - 1."""
    digits = drawn.bit_length() - 1
    # What follows the first digit, as a fraction with 64 digits.
    rest = (drawn << 64 >> digits) - (1 << 64)
    step, between = rest >> 64 - _STEP_BITS, rest & (1 << 64 - _STEP_BITS) - 1
    low, high = _LOGS[step], _LOGS[step + 1]
    log = low + ((high - low) * between >> 64 - _STEP_BITS)
    return (_DRAWN_BITS - digits << _FRACTION_BITS) - log


def ranked(names: Iterable[Name], seed: bytes) -> list[Name]:
    """Return names in an order that is drawn by the seed."""
    return sorted(names, key=lambda name: content_id(seed + name))


def draw(weights: Mapping[Name, int], seed: bytes) -> Name | None:
    """Return the name that is drawn with a probability in proportion to its weight; None if no weight is
    positive."""
    best: Name | None = None
    least, of = 0, 1
    for name, weight in weights.items():
        if weight <= 0:
            continue
        drawn = int.from_bytes(content_id(seed + name)[: _DRAWN_BITS // 8], "big") or 1
        number = exponential(drawn)
        # The smaller of number / weight and least / of; of equal ones the smaller name.
        difference = number * of - least * weight
        if best is None or difference < 0 or (difference == 0 and name < best):
            best, least, of = name, number, weight
    return best
