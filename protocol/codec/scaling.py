"""Length of a scaled step, the same to the last bit on every machine.

A scaled step goes in the direction of S, the inverse transform of the sum of all updates, while a sign
step takes the signs of S. Both have the same length: over a whole matrix the root mean square of the
step's elements is the learning rate. For this, S is divided by its own root mean square, which follows
from the sums of signs: the transform is orthogonal up to a factor, so the sum of squares of S is that of
the sums times the square of that factor.
"""

from __future__ import annotations

import math
from fractions import Fraction

from .basis import BASIS_SCALE
from .schedule import nearest_float32

SMALLEST_FACTOR = 2.0**-100
"""A factor below this counts as 0, so that no step has elements that a device may flush to zero."""

MAX_MOVE = 2.0
"""Bound on an element's move in a scaled step, in learning rates. With the signs of many members it
hardly changes a step. Without it, a member whose signs of a block all add up in one element, round after
round, could drive that element away. It is a power of two, so that the bound is exact."""

_LARGER = Fraction(BASIS_SCALE**2, 2)

# Minimum number of significant bits of a root: far more than float32 has.
_BITS = 64


def step_factor(learning_rate: float, squares: Fraction) -> float:
    """Return the factor by which a scaled step multiplies S, in one matrix: a float that float32
    represents exactly.

    `squares`: for each block, the sum over its coefficients of the squared sum of all updates; then the
    average over the matrix's blocks. The transform along a side of n points multiplies a sum of squares
    by 127²·n/2, and a block has as many elements as coefficients, so

        the root mean square of S = 127²/2 · sqrt(squares)

    up to the rounding of the basis. The factor is 0 if all updates cancel.

    Raises `OverflowError` if the factor is too large for float32.
    """
    if not squares:
        return 0.0
    mean = squares * _LARGER**2
    factor = nearest_float32(_root(Fraction(learning_rate) ** 2 / mean))
    return factor if factor >= SMALLEST_FACTOR else 0.0


def _root(value: Fraction) -> Fraction:
    """Return the square root, rounded down to at least 64 significant bits."""
    if not value:
        return Fraction(0)
    size = value.numerator.bit_length() - value.denominator.bit_length()
    shift = max(0, _BITS - size // 2 + 1)
    return Fraction(math.isqrt((value.numerator << 2 * shift) // value.denominator), 1 << shift)
