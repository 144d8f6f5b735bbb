"""Pseudo-random bijections of [0, n), computed for single values without a table."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...crypto.hashing import content_id

Numbers = npt.NDArray[np.uint64]

# Number of pairs of Feistel rounds. Luby and Rackoff require four rounds of a random function; `mix` is
# weaker, so there are twice as many. The permutation keeps no secret: it only has to shuffle well.
_FEISTEL_PAIRS = 4


def permutation_keys(material: bytes) -> Numbers:
    """Derive the keys, uint64 (8,), from some bytes."""
    # A hash of 32 bytes gives four 64-bit keys.
    digests = [content_id(material + bytes([part])) for part in range(_FEISTEL_PAIRS // 2)]
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def permute(ranks: Numbers, count: int, keys: Numbers) -> Numbers:
    """Apply the bijection of [0, count) that `keys` select, to each of `ranks`. `keys` has one column
    for each rank, or one for all.

    The bijection is a Feistel network on the next power of two. A value that falls outside [0, count) is
    permuted again until it is inside (cycle walking). Since over half of the power of two is inside,
    this takes fewer than two passes on average.
    """
    bits = (count - 1).bit_length()
    values = ranks.copy()
    outside = np.ones(len(values), dtype=bool)
    while outside.any():
        own = keys if keys.shape[1] == 1 else keys[:, outside]
        values[outside] = _feistel(values[outside], bits, own)
        outside = values >= np.uint64(count)
    return values


def _feistel(values: Numbers, bits: int, keys: Numbers) -> Numbers:
    low_bits = np.uint64(bits - bits // 2)
    low_mask = np.uint64((1 << int(low_bits)) - 1)
    high_mask = np.uint64((1 << (bits // 2)) - 1)
    low, high = values & low_mask, values >> low_bits
    for pair in range(_FEISTEL_PAIRS):
        high = high ^ (mix(low + keys[2 * pair]) & high_mask)
        low = low ^ (mix(high + keys[2 * pair + 1]) & low_mask)
    return (high << low_bits) | low


def mix(values: Numbers) -> Numbers:
    """Apply Stafford's 13th variant of the 64-bit finaliser: every input bit affects every output
    bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
