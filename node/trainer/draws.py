"""What is drawn in training, so that every member draws the same for a sample.

A hash draws it and no library's generator, which a newer release, or another device, may change.
"""

from __future__ import annotations

import numpy as np
from blake3 import blake3

_WHOLE = 2.0**32


def drawn(purpose: str, key: tuple[int, ...], count: int) -> np.ndarray:
    """So many numbers of 32 bits out of a key of whole numbers below 2⁶⁴: int64 (count,). `purpose`
    keeps what is drawn for one use apart from that for another."""
    joined = b"".join(number.to_bytes(8, "little") for number in key)
    stream = blake3(joined, derive_key_context=f"distro-node {purpose}").digest(4 * count)
    return np.frombuffer(stream, "<u4").astype(np.int64)


def normal(purpose: str, key: tuple[int, ...], count: int) -> np.ndarray:
    """So many numbers of the standard normal distribution: float32 (count,).

    Two at a time out of two that are uniform (Box and Muller, 1958). None is further out than 6.7.
    """
    pairs = (count + 1) // 2
    uniform = drawn(purpose, key, 2 * pairs).astype(np.float64)
    # Never 0, which has no logarithm.
    radius = np.sqrt(-2.0 * np.log((uniform[:pairs] + 1.0) / _WHOLE))
    angle = 2.0 * np.pi * uniform[pairs:] / _WHOLE
    both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return both[:count].astype(np.float32)
