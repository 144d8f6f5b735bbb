"""The audit: which of a round's updates are contradicted by most of the others.

Members that train one model on one kind of text agree in most signs that any two of them send for the
same coefficient; whoever sends the opposite of what it found disagrees with nearly everybody. The
audit compares every two updates and leaves out those that more than half of the others contradict.
It needs nothing but the updates of the one round, keeps no state, and counts in whole numbers: every
member comes to the same verdict.

Each update has one voice about each other, whatever it says and however late it was made. So fewer
than half of the members cannot silence anybody, though they see all other updates first. What the
audit does not see is an update that agrees with the others where they speak and lies where they are
silent; it can only move what nobody else moves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ...crypto.hashing import content_id
from .layout import UpdateLayout
from .update import DecodedUpdate

# Entries of the table of votes (members × coefficients that several of them send): 16 MiB in float32,
# and below a tenth of a second. Of more (with k = 8 above 16,384 blocks and 8 members, or 1,024 and 32)
# a sample of the blocks is compared. With hundreds of members it gets small and verdicts rare; but then
# so many signs meet at every coefficient that lies are outvoted there.
_TABLE_ENTRIES = 1 << 22


def audit_seed(bodies: Sequence[bytes]) -> int:
    """Where the sample of blocks begins: known to nobody before all bodies are, in any order."""
    ids = sorted(content_id(body) for body in bodies)
    return int.from_bytes(content_id(b"".join(ids))[:8], "big")


def contradicted(layout: UpdateLayout, updates: Sequence[DecodedUpdate], seed: int) -> set[int]:
    """The indices of the updates that more than half of the others contradict.

    Of fewer than three updates it is none: two that contradict each other cannot be told apart.
    """
    count = len(updates)
    if count < 3:
        return set()
    net = np.zeros((count, count), dtype=np.int64)
    shared = np.zeros((count, count), dtype=np.int64)
    total = sum(tensor.blocks for tensor in layout.tensors)
    largest = max(tensor.top_k for tensor in layout.tensors)
    stride = -(-total // max(1, 2 * _TABLE_ENTRIES // (count * count * largest)))
    # Of all tensors' blocks in a row every stride-th is in the sample; `start` counts from the first of
    # the tensor at hand.
    start = seed % stride
    for index, tensor in enumerate(layout.tensors):
        if start < tensor.blocks:
            sample = slice(start, None, stride)
            positions = np.stack([update.positions[index][sample] for update in updates])
            signs = np.stack([update.signs[index][sample] for update in updates])
            votes = _votes(positions, signs, tensor.elements)
            spoken = np.abs(votes)
            # At most 2^24 / 3 entries are summed, so float32 is exact in any order.
            net += (votes @ votes.T).astype(np.int64)
            shared += (spoken @ spoken.T).astype(np.int64)
        start = (start - tensor.blocks) % stride
    # Of m signs that both send, agreements less disagreements have the standard deviation √m if each
    # were the throw of a coin. One deviation below zero: one in six pairs that have nothing to do with
    # each other, but seldom more than half of the pairs of one update.
    against = (net < 0) & (net * net > shared)
    return set(np.flatnonzero(2 * against.sum(axis=1) > count - 1).tolist())


def _votes(
    positions_UBK: npt.NDArray[np.int32], signs_UBK: npt.NDArray[np.int8], elements: int
) -> npt.NDArray[np.float32]:
    """The sign of each update at each coefficient that several send, 0 where it is silent: (U, C)."""
    count, blocks, _ = positions_UBK.shape
    places = positions_UBK + (np.arange(blocks, dtype=np.int64) * elements)[:, None]
    _, inverse, times = np.unique(places, return_inverse=True, return_counts=True)
    several = times > 1
    column = np.where(several, np.cumsum(several) - 1, -1)[inverse].reshape(count, -1)
    votes = np.zeros((count, int(several.sum()) + 1), dtype=np.float32)
    # The last column, where -1 leads, takes what only one update sends.
    votes[np.arange(count)[:, None], column] = signs_UBK.reshape(count, -1)
    return votes[:, :-1]
