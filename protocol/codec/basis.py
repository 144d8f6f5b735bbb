"""The integer cosine basis of every member's inverse transform.

A floating-point inverse transform differs in its last bits between devices, libraries and thread
counts, and a sign taken from it would sooner or later differ too. With the basis rounded to whole
numbers every product and partial sum is a whole number, exact as long as it stays small enough, so the
order of summation no longer matters.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

MAX_SIDE = 64
"""The longest side of a transform block; `OptimizerSpec.chunk` has the same bound."""

BASIS_SCALE = 127
"""The largest entry that a basis can have. Signs then agree with the unrounded transform's on
99.86 % of entries, and float32 stays exact up to 130 members at k = 8 of 64 × 64."""

# Entries are rounded half away from zero. The only exact ties (127/2, where the cosine is 1/2, on
# sides that are multiples of 3) come out of floats a hair above or below; the nudge puts them on one
# side. It is far above the error of any libm (1e-14) and far below the distance of every other entry
# from a tie (over 1e-6, checked by a test), so it decides ties and nothing else.
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
            # Reduced as an integer, so that large angles lose no precision.
            angle = (2 * position + 1) * frequency % (4 * side)
            basis[frequency, position] = norm * math.cos(math.pi * angle / (2 * side))
    return basis


def exact_in_float32(said: int, top_k: int, rows: int, columns: int) -> bool:
    """Whether float32 holds every number of a block's inverse transform exactly, where `said` is the
    sum of the update weights. Beyond the bound use float64, exact below 2^53: 4096 members of weight 2
    × 4096 coefficients × 127² stay under it by a factor of 16,000.
    """
    return said <= most_in_float32(top_k, rows, columns)


def most_in_float32(top_k: int, rows: int, columns: int) -> int:
    """Return the largest sum of update weights for which float32 is exact in blocks of this size.

    A block's coefficients are a sum of that many × `top_k` signs; each contributes at most the largest
    entries of its two bases to any value or partial sum, in any order of summation.
    """
    return (_FLOAT32_EXACT - 1) // (top_k * _largest(rows) * _largest(columns))


def _largest(side: int) -> int:
    # A side of 1 is not transformed.
    return int(np.abs(integer_basis(side)).max()) if side > 1 else 1
