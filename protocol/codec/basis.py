"""The integer cosine basis that every member uses for the inverse transform.

A floating-point inverse transform differs in its last bits between devices, libraries and thread
counts, and signs taken from it would sooner or later differ too. If the basis is rounded to whole
numbers, every product and partial sum is a whole number, which is exact as long as it is small enough,
so the order of summation does not matter.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

MAX_SIDE = 64
"""The longest side of a transform block; `OptimizerSpec.chunk` has the same bound."""

BASIS_SCALE = 127
"""The largest entry that a basis can have. With this scale the signs agree with those of the unrounded
transform on 99.86 % of entries, and float32 is exact for up to 130 members at k = 8 of 64 × 64."""

# Entries are rounded half away from zero. The only exact ties (127/2, where the cosine is 1/2, on
# sides that are multiples of 3) are slightly above or below in floating point; this addition makes all
# of them round away from zero. It is far above the error of any libm (1e-14) and far below the distance
# of every other entry from a tie (over 1e-6, checked by a test), so it affects ties only.
_NUDGE = 1e-9

_FLOAT32_EXACT = 1 << 24


@functools.cache
def integer_basis(side: int) -> npt.NDArray[np.int8]:
    """Return the DCT-II matrix of `side` points, scaled and rounded: row = frequency, column =
    position.

    Entry (f, x) is round(127 · s_f · cos(π (2x + 1) f / 2n)) with s_0 = sqrt(1/2) and s_f = 1
    otherwise: a multiple of the orthonormal DCT-II, so signs are the same. The array is read-only and
    the same on every platform.

    Raises `ValueError` unless 1 ≤ side ≤ 64.
    """
    scaled = scaled_basis(side)
    entries = np.floor(np.abs(scaled) + (0.5 + _NUDGE)) * np.sign(scaled)
    basis = entries.astype(np.int8)
    basis.flags.writeable = False
    return basis


def scaled_basis(side: int) -> npt.NDArray[np.float64]:
    """Return `integer_basis` before rounding."""
    return BASIS_SCALE * math.sqrt(side / 2) * orthonormal_basis(side)


def orthonormal_basis(side: int) -> npt.NDArray[np.float64]:
    """Return the orthonormal DCT-II matrix of `side` points: row = frequency, column = position."""
    if not 1 <= side <= MAX_SIDE:
        raise ValueError(f"a transform block's side must be 1 to {MAX_SIDE}, not {side}")
    basis = np.empty((side, side), dtype=np.float64)
    for frequency in range(side):
        norm = math.sqrt((1 if frequency == 0 else 2) / side)
        for position in range(side):
            # The angle is reduced as an integer, so that large angles lose no precision.
            angle = (2 * position + 1) * frequency % (4 * side)
            basis[frequency, position] = norm * math.cos(math.pi * angle / (2 * side))
    return basis


def exact_in_float32(total_weight: int, top_k: int, rows: int, columns: int) -> bool:
    """Whether float32 represents every number in the inverse transform of a block of `rows` × `columns`
    exactly, if `total_weight` is the sum of the update weights. If not, use float64, which is exact
    below 2^53: 4096 members of weight 2 × 4096 coefficients × 127² stay below that by a factor of
    16,000.
    """
    return total_weight <= most_in_float32(top_k, rows, columns)


def most_in_float32(top_k: int, rows: int, columns: int) -> int:
    """Return the largest sum of update weights for which float32 is exact in blocks of this size.

    A block's coefficients are the sum of that many × `top_k` signs. Each sign contributes at most the
    product of the largest entries of the two bases to any value or partial sum, whatever the order of
    summation.
    """
    return (_FLOAT32_EXACT - 1) // (top_k * _largest(rows) * _largest(columns))


def _largest(side: int) -> int:
    # A side of 1 is not transformed.
    return int(np.abs(integer_basis(side)).max()) if side > 1 else 1
