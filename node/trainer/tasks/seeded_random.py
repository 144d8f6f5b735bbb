"""Seeded random numbers of training, so that every member draws the same ones for a sample.

A hash generates them, not a library's generator, which may change with a newer release or another
device.
"""

from __future__ import annotations

import numpy as np
from blake3 import blake3

_WHOLE = 2.0**32


def draw_integers(purpose: str, key: tuple[int, ...], count: int) -> np.ndarray:
    """Return `count` numbers of 32 bits derived from a key of integers below 2⁶⁴: int64 (count,).
    `purpose` separates the numbers of different uses."""
    joined = b"".join(number.to_bytes(8, "little") for number in key)
    stream = blake3(joined, derive_key_context=f"distro-node {purpose}").digest(4 * count)
    return np.frombuffer(stream, "<u4").astype(np.int64)


def draw_normal(purpose: str, key: tuple[int, ...], count: int) -> np.ndarray:
    """Return `count` numbers of the standard normal distribution: float32 (count,).

    Each pair is made from two uniform numbers (Box and Muller, 1958). No number exceeds 6.7 in
    magnitude.
    """
    pairs = (count + 1) // 2
    uniform = draw_integers(purpose, key, 2 * pairs).astype(np.float64)
    # The argument of the logarithm is never 0.
    radius = np.sqrt(-2.0 * np.log((uniform[:pairs] + 1.0) / _WHOLE))
    angle = 2.0 * np.pi * uniform[pairs:] / _WHOLE
    both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return both[:count].astype(np.float32)
