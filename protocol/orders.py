"""What the order of a block's coefficients says: bits, since the set that they form has no order.

k different positions can be arranged in k! ways. Coding them one after the other pays log2(k!) bits
too much; an encoder gets them back by letting the arrangement spell bits that it had to write
anyway. Arrangements that spell nothing are not valid, so each update keeps one spelling.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from .errors import ProtocolError

# The digits of a group make up one number in int64: up to 20 coefficients (20! < 2^62) are one group.
_LARGEST_GROUP = 1 << 62


@cache
def _groups(count: int) -> tuple[tuple[int, int, int], ...]:
    """(first digit, digit after the last, bits) of each group of the digits 1 … count - 1.

    Digit j is in [0, j]. A group of digits spells as many whole bits as its number of values allows.
    """
    groups = []
    first, values = 1, 1
    for digit in range(1, count):
        if values * (digit + 1) > _LARGEST_GROUP:
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


def read_orders(positions: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
    """The bits, (blocks · order_bits,), that the order of the positions (blocks, k) spells.

    Raises `ProtocolError` (`malformed`) if one spells nothing.
    """
    blocks, count = positions.shape
    spelled = []
    for first, end, bits in _groups(count):
        values = np.zeros(blocks, dtype=np.int64)
        for digit in range(end - 1, first - 1, -1):
            smaller = (positions[:, :digit] < positions[:, digit, None]).sum(axis=1)
            values *= digit + 1
            values += smaller
        if (values >> bits).any():
            raise ProtocolError("malformed", "an order of coefficients spells nothing")
        spelled.append(_to_bits(values, bits))
    return np.concatenate(spelled, axis=1).ravel() if spelled else np.empty(0, dtype=np.uint8)


def write_orders(
    positions: npt.NDArray[np.int32], spelled: npt.NDArray[np.uint8]
) -> npt.NDArray[np.int32]:
    """Arrange ascending positions (blocks, k) so that `read_orders` gives these bits."""
    blocks, count = positions.shape
    digits = np.zeros((count, blocks), dtype=np.int64)
    bits_of_block = spelled.reshape(blocks, order_bits(count))
    start = 0
    for first, end, bits in _groups(count):
        values = _from_bits(bits_of_block[:, start : start + bits])
        start += bits
        for digit in range(first, end):
            values, digits[digit] = np.divmod(values, digit + 1)
    arranged = np.empty_like(positions)
    left, every = positions.copy(), np.arange(blocks)
    for place in range(count - 1, -1, -1):
        chosen = digits[place]
        arranged[:, place] = left[every, chosen]
        behind = np.arange(place) >= chosen[:, None]
        left = np.where(behind, left[:, 1:], left[:, :-1])
    return arranged


def _to_bits(values: npt.NDArray[np.int64], bits: int) -> npt.NDArray[np.uint8]:
    """(n,) to (n, bits), most significant first."""
    octets = values.astype(">i8").view(np.uint8).reshape(-1, 8)
    return np.unpackbits(octets, axis=1)[:, 64 - bits :]


def _from_bits(bits: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    count, width = bits.shape
    padded = np.zeros((count, 64), dtype=np.uint8)
    padded[:, 64 - width :] = bits
    return np.packbits(padded, axis=1).view(">i8").astype(np.int64).ravel()
