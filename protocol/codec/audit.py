"""The audit: which of a round's updates are contradicted by most of the others.

Members that train one model on one kind of text agree in most signs that any two of them send for the
same coefficient; a member that sends the opposite of what it found disagrees with nearly everybody. The
audit compares every two updates and leaves out those that more than half of all others contradict,
the most contradicted first; an update that is left out counts no more. The audit needs
nothing but the updates of the one round, keeps no state, and counts in whole numbers: every member comes
to the same verdict.

It promises that each update counts once for or against each other, whatever it says and however late
it was made, and however often it counts in the step: a large share is had for a claim, and must not
silence others. So fewer than half of the members cannot have a member left out that no other one
contradicts, though they see all other updates first. They can if others happen to contradict it as well;
`benchmarks/audit.py` measures how often. The audit does not see an update that agrees with the others
where they speak and lies where they are silent, or that lies in so few coefficients that it contradicts
nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ...crypto.hashing import content_id
from .layout import UpdateLayout
from .update import DecodedUpdate

# The most that a round's audit may cost: positions looked at, and products of two members' signs. Above
# that (with k = 8: 1,024 blocks and 32 members, or 128 and 256) a sample of the blocks is compared.
_POSITIONS = 1 << 18
_PRODUCTS = 1 << 33
# Entries of the table of signs (members × coefficients that several of them send): 16 MiB in float32.
_TABLE_ENTRIES = 1 << 22
# A contradiction is more than chance and this part of what both send, at least. Of many coefficients
# chance is a small part, and members that have little to do with each other contradict nobody.
_LEAST_PART = 16


def audit_seed(bodies: Sequence[bytes]) -> int:
    """What the sample of blocks is drawn with: depends on all bodies, in any order.

    Whoever announces last knows it, and so does a leader; nothing that a record holds is hidden from
    both. So no hope rests on that: blocks are drawn one by one, and of any number of seeds that
    somebody can try none gives a sample that is much unlike the rest.
    """
    ids = sorted(content_id(body) for body in bodies)
    return int.from_bytes(content_id(b"".join(ids))[:8], "big")


def contradicted(layout: UpdateLayout, updates: Sequence[DecodedUpdate], seed: int) -> set[int]:
    """The indices of the updates that are left out.

    Of fewer than three updates it is none: two that contradict each other cannot be told apart.
    """
    if len(updates) < 3:
        return set()
    return outvoted(contradictions(layout, updates, seed))


def outvoted(against: npt.NDArray[np.bool_]) -> set[int]:
    """The indices of those that more than half of all others are against, the most opposed first.

    `against` (U, U) is symmetric. Those most opposed, all that are alike, are out, and what they say of
    others counts no more; then the same among the rest. Half is always of all: nobody is left out that
    more than half of the others are not against.
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
    """Which updates contradict each other: (U, U), symmetric."""
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
            spoken = np.abs(signs_by_member)
            # At most 2^24 / 3 entries are summed, so float32 is exact in any order.
            net += (signs_by_member @ signs_by_member.T).astype(np.int64)
            shared += (spoken @ spoken.T).astype(np.int64)
    # Of m signs that both send, agreements less disagreements have the standard deviation √m if each
    # were the throw of a coin. One deviation below zero: one in six pairs that have nothing to do with
    # each other, as long as they share little.
    return (net < 0) & (net * net > shared) & (-net * _LEAST_PART > shared)


def sample(
    layout: UpdateLayout, count: int, seed: int
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """The blocks of each tensor (by its index) that are compared, ascending.

    All tensors' blocks in a row are cut into stretches of one length, and one block is drawn from each
    stretch by itself. A sample of s blocks so has many more than 2^s outcomes. Somebody who tries t
    seeds finds a share of lies in it that is too small by x with a probability below t·exp(-2·s·x²).
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
    """`count` numbers that look like chance: SplitMix64 (Steele, Lea and Flood, 2014) from `seed`."""
    steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = steps + np.uint64(seed)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _signs_by_member(
    positions_UBK: npt.NDArray[np.int32], signs_UBK: npt.NDArray[np.int8], elements: int
) -> npt.NDArray[np.float32]:
    """The sign of each update at each coefficient that several send, 0 where it is silent: (U, C)."""
    count, blocks, _ = positions_UBK.shape
    indices = positions_UBK + (np.arange(blocks, dtype=np.int64) * elements)[:, None]
    _, inverse, times = np.unique(indices, return_inverse=True, return_counts=True)
    several = times > 1
    column = np.where(several, np.cumsum(several) - 1, -1)[inverse].reshape(count, -1)
    signs_by_member = np.zeros((count, int(several.sum()) + 1), dtype=np.float32)
    # The last column, where -1 leads, takes what only one update sends.
    signs_by_member[np.arange(count)[:, None], column] = signs_UBK.reshape(count, -1)
    return signs_by_member[:, :-1]
