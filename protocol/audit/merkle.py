"""Merkle tree over a list, with inclusion proofs: the tree of RFC 6962.

Leaves and nodes are hashed with different prefixes, so that neither can be passed off as the other. The
tree's hash covers the number of leaves, so that each place in the list has exactly one proof, of a known
length. Proofs may come from any peer: verifying one takes time bounded by its length.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...crypto.hashing import ContentId, content_id

MOST_STEPS = 63
"""Maximum proof length: a list has fewer than 2**63 items."""

_LEAF, _NODE, _TREE = b"\x00", b"\x01", b"\x02"


def tree_hash(leaves: Sequence[bytes]) -> ContentId:
    """Return the collision-resistant hash of a list."""
    *_, top = _levels(leaves)
    return _root_hash(len(leaves), top[0] if top else content_id(b""))


def inclusion_path(leaves: Sequence[bytes], index: int) -> tuple[ContentId, ...]:
    """Return the inclusion proof of `leaves[index]`: the sibling hashes on the path to the root."""
    steps = []
    for level in _levels(leaves):
        sibling = index ^ 1
        if sibling < len(level):
            steps.append(level[sibling])
        index >>= 1
    return tuple(steps)


def verify_inclusion(
    leaf: bytes, index: int, size: int, steps: Sequence[ContentId], tree: ContentId
) -> bool:
    """Whether the proof `steps` shows that `leaf` is item `index` of a list of `size` items with the
    hash `tree`."""
    if not 0 <= index < size < 1 << 63:
        return False
    hashed, last, rest = content_id(_LEAF + leaf), size - 1, iter(steps)
    while last:
        # The last node of an odd number has no sibling and moves up unchanged.
        if index % 2 or index < last:
            sibling = next(rest, None)
            if sibling is None:
                return False
            hashed = _parent_hash(sibling, hashed) if index % 2 else _parent_hash(hashed, sibling)
        index, last = index >> 1, last >> 1
    return next(rest, None) is None and _root_hash(size, hashed) == tree


def _levels(leaves: Sequence[bytes]) -> list[list[ContentId]]:
    """Return the hashes of the leaves, of the level above them, and so on up to the root."""
    levels = [[content_id(_LEAF + leaf) for leaf in leaves]]
    while len(levels[-1]) > 1:
        below = levels[-1]
        above = [_parent_hash(*below[at : at + 2]) for at in range(0, len(below) - 1, 2)]
        levels.append(above + below[len(below) & ~1 :])
    return levels


def _parent_hash(left: ContentId, right: ContentId) -> ContentId:
    return content_id(_NODE + left + right)


def _root_hash(size: int, top: ContentId) -> ContentId:
    return content_id(_TREE + size.to_bytes(8, "big") + top)
