"""Length of a scaled step, the same to the last bit on every machine.

A scaled step goes in the direction of the inverse transform S itself, where a sign step takes S's
signs. Both have the same length: over a whole matrix the root mean square of the step's elements is the
learning rate. For this S is divided by its own root mean square, which follows from the sums of signs:
the transform is orthogonal up to a factor, so S's sum of squares is that of the sums times the factor's
square.
"""

from __future__ import annotations

import math
from fractions import Fraction

from .basis import BASIS_SCALE
from .schedule import nearest_float32

SMALLEST_FACTOR = 2.0**-100
"""A factor below this counts as 0, so that no step has elements that a device may flush to zero."""

FURTHEST = 2.0
"""Bound on an element's move in a scaled step, in learning rates. It costs next to nothing with many
members' signs, and a member that lets all signs of a block meet in one element, round after round,
cannot drive that element away. A power of two, so that the bound is exact."""

_LARGER = Fraction(BASIS_SCALE**2, 2)

# Least number of fractional bits of a root: far more than float32 holds.
_BITS = 64


def step_factor(learning_rate: float, squares: Fraction) -> float:
    """Return the factor by which a scaled step multiplies S, in one matrix: a float that float32
    represents exactly.

    `squares`: the sum over a block's coefficients of the squared sum of all updates there, averaged
    over the matrix's blocks. Each side of a block, of n points, makes a sum of squares 127²·n/2 times
    as large, and a block has as many elements as coefficients, so

        the root mean square of S = 127²/2 · sqrt(squares)

    up to the rounding of the basis. 0 where everything cancels.

    Raises `OverflowError` if it is too large for float32.
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
