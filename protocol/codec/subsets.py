"""Numbering of position sets: the sets of k out of n positions, numbered from 0 to C(n, k) - 1.

This is the combinatorial number system: positions p_1 < p_2 < … < p_k have the number

    C(p_1, 1) + C(p_2, 2) + … + C(p_k, k).

Each number belongs to one set and each set has one number. The largest position is decoded first: it is
the largest p with C(p, k) ≤ number; the remainder is the number of the other k - 1 positions.

The numbers have more bits than a machine word (72 for 7 of 4096 positions), so they are kept as limbs of
32 bits. Each block of coefficients has one set (`TensorLayout`). The sets of many blocks are processed
together, with one array operation for each limb.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ..wire.errors import ProtocolError

Positions = npt.NDArray[np.int32]
"""Positions of sets, of shape (k, count): each column is a set, in ascending order."""

Octets = npt.NDArray[np.uint8]
"""Numbers of sets, of shape (count, octets), the most significant octet first."""

_Limbs = npt.NDArray[np.uint64]
"""Numbers in limbs of 32 bits, of shape (limbs, count), the least significant limb first."""

# The bits of a limb, and the base of numbers in limbs.
_BITS = np.uint64(32)
_BASE = 1 << 32


def subset_numbers(positions: Positions, elements: int, octets: int) -> Octets:
    """Return the numbers of sets out of `elements` positions, each as `octets` octets."""
    top_k, count = positions.shape
    limbs = -(-octets // 4)
    numbers = np.zeros((limbs, count), dtype=np.uint64)
    table = _ones(elements, top_k)
    for row in positions:
        table = _next(table)
        numbers[: len(table)] += table.take(row, axis=1)
    _carry(numbers)
    wide = np.ascontiguousarray(numbers[::-1].T.astype(">u4")).view(np.uint8)
    return wide.reshape(count, 4 * limbs)[:, 4 * limbs - octets :]


def subsets(numbers: Octets, elements: int, top_k: int) -> Positions:
    """Return the sets of `top_k` out of `elements` positions with these numbers.

    Raises `ProtocolError` (`malformed`) for a number that no set has.
    """
    count, octets = numbers.shape
    wide = np.zeros((count, -(-octets // 4) * 4), dtype=np.uint8)
    wide[:, wide.shape[1] - octets :] = numbers
    left = wide.view(">u4").T[::-1].astype(np.uint64)
    table = _ones(elements, top_k)
    for _ in range(top_k):
        table = _next(table)
    # The table's last entry is C(elements, top_k).
    if len(table) < len(left):
        table = np.pad(table, ((0, len(left) - len(table)), (0, 0)))
    if not _less(left, table[:, -1:]).all():
        raise _no_set()
    positions = np.empty((top_k, count), dtype=np.int32)
    for rank in range(top_k - 1, -1, -1):
        while len(table) > 1 and not table[-1].any():
            table, left = table[:-1], left[:-1]
        found = _last_not_above(table, left)
        positions[rank] = found
        left -= table.take(found, axis=1)
        _borrow(left)
        # From C(p, i) to C(p, i - 1) = C(p + 1, i) - C(p, i), with i = rank + 1.
        table = np.diff(table, axis=1)
        _borrow(table)
    return positions


def check_numbers(numbers: Octets, elements: int, top_k: int) -> None:
    """Check that each number is that of a set of `top_k` out of `elements` positions, which means that
    it is below the count of these sets.

    Raises `ProtocolError` (`malformed`) if it is not.
    """
    octets = numbers.shape[1]
    sets = math.comb(elements, top_k)
    if sets >= 1 << 8 * octets:
        return
    # From the most significant octet on. `equal` are the numbers that equal the bound up to here and so
    # are still undecided.
    equal = numbers
    for place, bound in enumerate(sets.to_bytes(octets, "big")):
        octet = equal[:, place]
        if (octet > bound).any():
            raise _no_set()
        equal = equal[octet == bound]
    if len(equal):
        raise _no_set()


def _no_set() -> ProtocolError:
    return ProtocolError("malformed", "a number that encodes no set of positions")


def _ones(elements: int, top_k: int) -> _Limbs:
    """Return C(p, 0), which is 1, for so many p that `top_k` calls of `_next` yield C(p, top_k) for
    p = 0 … elements."""
    return np.ones((1, elements + 1 - top_k), dtype=np.uint64)


def _next(table: _Limbs) -> _Limbs:
    """Return C(p, i + 1) for p = 0 … m + 1, given C(p, i) for p = 0 … m: each is the sum of the given
    values over all smaller p."""
    limbs, entries = table.shape
    sums = np.zeros((limbs + 1, entries + 1), dtype=np.uint64)
    # A block has at most 64 · 64 positions, so these sums stay below 2^45.
    np.cumsum(table, axis=1, out=sums[:limbs, 1:])
    _carry(sums)
    return sums if sums[-1].any() else sums[:-1]


def _carry(numbers: _Limbs) -> None:
    for low, high in pairwise(numbers):
        high += low >> _BITS
        low &= np.uint64(_BASE - 1)


def _borrow(numbers: _Limbs) -> None:
    """Normalise limbs that a subtraction left below zero; as unsigned numbers these are near 2^64."""
    for low, high in pairwise(numbers):
        below = low >> np.uint64(63)
        low += below << _BITS
        high -= below


def _last_not_above(table: _Limbs, numbers: _Limbs) -> npt.NDArray[np.intp]:
    """Return for each number the index of the last entry of an ascending table that is not above it."""
    keys, wanted = _rounded(table), _rounded(numbers)
    found = np.searchsorted(keys, wanted, side="right") - 1
    if len(table) > 1:
        # If a number and an entry round to the same value, only their limbs show which is larger.
        (unsure,) = (keys[found] == wanted).nonzero()
        found[unsure] = _search(table, numbers[:, unsure], keys, wanted[unsure])
    return found


def _search(
    table: _Limbs,
    numbers: _Limbs,
    keys: npt.NDArray[np.float64],
    wanted: npt.NDArray[np.float64],
) -> npt.NDArray[np.intp]:
    """Return the result of `_last_not_above` for the `numbers` whose rounded values do not determine it.
    This is a bisection."""
    first = np.maximum(np.searchsorted(keys, wanted, side="left") - 1, 0)
    last = np.searchsorted(keys, wanted, side="right") - 1
    while (first < last).any():
        middle = (first + last + 1) // 2
        above = _less(numbers, table.take(middle, axis=1))
        last = np.where(above, middle - 1, last)
        first = np.where(above, first, middle)
    return first


def _rounded(numbers: _Limbs) -> npt.NDArray[np.float64]:
    """Return the numbers in units of the most significant limb. Rounding may make two of them equal, but
    never changes their order.

    Values too small for a float64 become 0.
    """
    rounded = np.zeros(numbers.shape[1])
    for number, limbs in enumerate(numbers[::-1]):
        rounded += limbs * math.ldexp(1.0, -32 * number)
    return rounded


def _less(left: _Limbs, right: _Limbs) -> npt.NDArray[np.bool_]:
    less = left[0] < right[0]
    for a, b in zip(left[1:], right[1:], strict=True):
        less = (a < b) | ((a == b) & less)
    return less
