"""Outlier filter: finds the updates of a round that most of the others contradict.

Members that train one model on one kind of text agree in most signs that any two of them send for the
same coefficient; a member that sends the opposite of its gradient disagrees with nearly all others. The
filter compares every two updates and leaves out each that more than half of all others contradict, the
most contradicted first; an update that is left out no longer counts against the rest. The filter needs
only the updates of one round, keeps no state, and counts in whole numbers, so every member gets the same
result.

Each update counts once for or against each other, whatever it contains, however late it was made, and
whatever its update weight: a member gets a large share by a mere claim, which must not let it exclude
others. So fewer than half of the members cannot exclude a member that no other one contradicts, even if
they see all other updates first. They can if others happen to contradict it as well; how often that
happens is in benchmarks/results/2026-11-22-audit.json. The filter does not detect an update that agrees
with the others on shared coefficients and is false elsewhere, or is false in so few coefficients that it
contradicts no other update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ...crypto.hashing import content_id
from .layout import UpdateLayout
from .update import DecodedUpdate

# Cost bounds of the filter in a round: number of positions read, and of products of two members' signs.
# Above them (with k = 8: 1,024 blocks and 32 members, or 128 blocks and 256 members) only a sample of
# the blocks is compared.
_POSITIONS = 1 << 18
_PRODUCTS = 1 << 33
# Entries of the table of signs (members × coefficients that several of them send): 16 MiB in float32.
_TABLE_ENTRIES = 1 << 22
# Two updates contradict each other if their disagreement exceeds both chance and a sixteenth of their
# shared coefficients. If these are many, chance stays below a sixteenth, so that unrelated updates do
# not contradict each other.
_LEAST_PART = 16


def audit_seed(bodies: Sequence[bytes]) -> int:
    """Return the seed that draws the sample of blocks. It depends on all bodies but not on their order.

    The member that announces last can know the seed in advance, and so can a leader, since no content of
    a record is hidden from both. So the sample does not rely on secrecy: blocks are drawn one by one,
    and none of the seeds that a member can try gives a sample much unlike the other blocks.
    """
    ids = sorted(content_id(body) for body in bodies)
    return int.from_bytes(content_id(b"".join(ids))[:8], "big")


def contradicted(layout: UpdateLayout, updates: Sequence[DecodedUpdate], seed: int) -> set[int]:
    """Return the indices of the updates that are left out.

    Fewer than three updates are all kept: of two that contradict each other, neither is known to be
    wrong.
    """
    if len(updates) < 3:
        return set()
    return outvoted(contradictions(layout, updates, seed))


def outvoted(against: npt.NDArray[np.bool_]) -> set[int]:
    """Return the indices of the updates that more than half of all others oppose.

    `against` (U, U) is symmetric: whether two updates oppose each other. The most opposed updates, with
    all ties, are left out, and their opposition no longer counts; this is repeated with the rest. "Half"
    always refers to the number of all other updates, those left out included.
    """
    others = len(against) - 1
    left_out: set[int] = set()
    opposed = against.sum(axis=1)
    while 2 * (most := int(opposed.max(initial=0))) > others:
        worst = np.flatnonzero(opposed == most)
        left_out.update(worst.tolist())
        opposed = opposed - against[:, worst].sum(axis=1)
        opposed[list(left_out)] = 0
    return left_out


def contradictions(
    layout: UpdateLayout, updates: Sequence[DecodedUpdate], seed: int
) -> npt.NDArray[np.bool_]:
    """Return which updates contradict each other: (U, U), symmetric. `seed` as from `audit_seed`."""
    count = len(updates)
    net = np.zeros((count, count), dtype=np.int64)
    shared = np.zeros((count, count), dtype=np.int64)
    largest = max(tensor.top_k for tensor in layout.tensors)
    slab = max(1, 2 * _TABLE_ENTRIES // (count * count * largest))
    for index, blocks in sample(layout, count, seed):
        tensor = layout.tensors[index]
        for first in range(0, len(blocks), slab):
            chosen = blocks[first : first + slab]
            positions = np.stack([update.positions[index][chosen] for update in updates])
            signs = np.stack([update.signs[index][chosen] for update in updates])
            signs_by_member = _signs_by_member(positions, signs, tensor.elements)
            sent = np.abs(signs_by_member)
            # At most 2^24 / 3 entries are summed, so float32 is exact in any order.
            net += (signs_by_member @ signs_by_member.T).astype(np.int64)
            shared += (sent @ sent.T).astype(np.int64)
    # If the m signs that both send were coin tosses, agreements minus disagreements would have a
    # standard deviation of √m. The bound is one deviation below zero; one in six unrelated pairs are
    # beyond it, as long as they share few coefficients.
    return (net < 0) & (net * net > shared) & (-net * _LEAST_PART > shared)


def sample(
    layout: UpdateLayout, count: int, seed: int
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yield the blocks of each tensor (by its index) that are compared, in ascending order.

    The sequence of the blocks of all tensors is cut into stretches of one length, and one block is drawn
    from each stretch independently. So a sample of s blocks has many more than 2^s outcomes. If t seeds
    are tried, the probability that a sample underestimates the share of false signs by x is below
    t·exp(-2·s·x²). `count` is the number of updates.
    """
    total = sum(tensor.blocks for tensor in layout.tensors)
    largest = max(tensor.top_k for tensor in layout.tensors)
    columns = min(count * largest // 2 + 1, max(tensor.elements for tensor in layout.tensors))
    most = min(_POSITIONS // (count * largest), _PRODUCTS // (count * count * columns))
    stretch = -(-total // max(1, most))
    starts = np.arange(0, total, stretch, dtype=np.int64)
    drawn = starts + (_scatter(seed, len(starts)) % np.uint64(stretch)).astype(np.int64)
    first = 0
    for index, tensor in enumerate(layout.tensors):
        yield index, drawn[(drawn >= first) & (drawn < first + tensor.blocks)] - first
        first += tensor.blocks


def _scatter(seed: int, count: int) -> npt.NDArray[np.uint64]:
    """Return `count` pseudo-random numbers: SplitMix64 (Steele, Lea and Flood, 2014) from `seed`."""
    steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = steps + np.uint64(seed)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _signs_by_member(
    positions_UBK: npt.NDArray[np.int16], signs_UBK: npt.NDArray[np.int8], elements: int
) -> npt.NDArray[np.float32]:
    """Return (U, C): the sign of each update at each coefficient that several updates send; 0 if this
    update does not send it."""
    count, blocks, _ = positions_UBK.shape
    indices = positions_UBK + (np.arange(blocks, dtype=np.int64) * elements)[:, None]
    _, inverse, times = np.unique(indices, return_inverse=True, return_counts=True)
    several = times > 1
    column = np.where(several, np.cumsum(several) - 1, -1)[inverse].reshape(count, -1)
    signs_by_member = np.zeros((count, int(several.sum()) + 1), dtype=np.float32)
    # The last column, index -1, takes coefficients that only one update sends.
    signs_by_member[np.arange(count)[:, None], column] = signs_UBK.reshape(count, -1)
    return signs_by_member[:, :-1]
