"""What the order of a block's coefficients says: bits, since the set that they form has no order.

k different positions can be arranged in k! ways, so coding one after the other pays log2(k!) bits
too much. An encoder gets them back by letting the arrangement spell bits that it had to write
anyway. An arrangement that spells nothing is not valid, so that each update keeps one spelling.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from ..wire.errors import ProtocolError

Bits = npt.NDArray[np.uint8]
"""One bit an element."""

Positions = npt.NDArray[np.int16]
"""(k, blocks): positions are below 64 · 64. The first axis is the order within a block."""

# What a group of digits can say is one number in int64. The 19 digits of k = 20 are one group.
_MOST_VALUES = 1 << 62


@cache
def _groups(count: int) -> tuple[tuple[int, int, int], ...]:
    """(first digit, digit after the last, bits) of each group of the digits 1 … count - 1.

    Digit j is one of 0 … j. A group spells as many whole bits as its number of values allows.
    """
    groups = []
    first, values = 1, 1
    for digit in range(1, count):
        if values * (digit + 1) > _MOST_VALUES:
            groups.append((first, digit, values.bit_length() - 1))
            first, values = digit, 1
        values *= digit + 1
    if count > 1:
        groups.append((first, count, values.bit_length() - 1))
    return tuple(groups)


@cache
def order_bits(count: int) -> int:
    """How many bits the order of so many coefficients spells."""
    return sum(bits for _, _, bits in _groups(count))


def read_orders(arranged: Positions) -> Bits:
    """The bits that the orders spell: `order_bits` a block, one block after the other.

    Digit j is the number of earlier positions that are smaller than position j; a group of digits
    d, d + 1, … is the number d's + (d + 1)'s · (d + 1) + (d + 2)'s · (d + 1)(d + 2) + …

    Raises `ProtocolError` (`malformed`) where that is too large for the group's bits.
    """
    count, blocks = arranged.shape
    spelled = [np.empty((blocks, 0), dtype=np.uint8)]
    for first, end, bits in _groups(count):
        values = np.zeros(blocks, dtype=np.int64)
        for digit in range(end - 1, first - 1, -1):
            smaller = (arranged[:digit] < arranged[digit]).view(np.uint8)
            values *= digit + 1
            values += np.add.reduce(smaller, axis=0, dtype=np.uint16)
        if (values >> bits).any():
            raise ProtocolError("malformed", "an order of coefficients spells nothing")
        spelled.append(_to_bits(values, bits))
    return np.concatenate(spelled, axis=1).ravel()


def write_orders(ascending: Positions, spelled: Bits) -> Positions:
    """Arrange ascending positions so that `read_orders` gives these bits."""
    count, blocks = ascending.shape
    digits = np.zeros((count, blocks), dtype=np.int64)
    bits_of_block = spelled.reshape(blocks, order_bits(count))
    start = 0
    for first, end, bits in _groups(count):
        values = _from_bits(bits_of_block[:, start : start + bits])
        start += bits
        for digit in range(first, end):
            values, digits[digit] = np.divmod(values, digit + 1)
    arranged = np.empty_like(ascending)
    left, every = ascending, np.arange(blocks)
    for place in range(count - 1, -1, -1):
        arranged[place] = left[digits[place], every]
        behind = np.arange(place)[:, None] >= digits[place]
        left = np.where(behind, left[1:], left[:-1])
    return arranged


def _to_bits(values: npt.NDArray[np.int64], bits: int) -> Bits:
    """(n,) to (n, bits), most significant first."""
    octets = -(-bits // 8)
    raw = values.astype(">i8").view(np.uint8).reshape(-1, 8)[:, 8 - octets :]
    return np.unpackbits(raw, axis=1)[:, 8 * octets - bits :]


def _from_bits(bits: Bits) -> npt.NDArray[np.int64]:
    count, width = bits.shape
    padded = np.zeros((count, 64), dtype=np.uint8)
    padded[:, 64 - width :] = bits
    return np.packbits(padded, axis=1).view(">i8").astype(np.int64).ravel()
