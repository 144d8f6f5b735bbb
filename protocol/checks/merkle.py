"""A Merkle tree over a list, and proofs that something stands in it: the tree of RFC 6962.

Leaves and nodes are hashed with different prefixes, so that none can be taken for the other. The tree's
hash covers how many leaves there are, so that a place in the list has one proof of one length. A proof
comes from anybody: whether it holds is told of any bytes, in time that is bounded by its length.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...crypto.hashing import ContentId, content_id

MOST_STEPS = 63
"""The longest proof: a list has fewer items than 2**63."""

_LEAF, _NODE, _TREE = b"\x00", b"\x01", b"\x02"


def tree_hash(leaves: Sequence[bytes]) -> ContentId:
    """The hash of a list, which nobody can find another list for."""
    *_, top = _levels(leaves)
    return _closed(len(leaves), top[0] if top else content_id(b""))


def path(leaves: Sequence[bytes], index: int) -> tuple[ContentId, ...]:
    """What proves that `leaves[index]` stands there: the hashes beside its way to the top."""
    steps = []
    for level in _levels(leaves):
        beside = index ^ 1
        if beside < len(level):
            steps.append(level[beside])
        index >>= 1
    return tuple(steps)


def stands(leaf: bytes, index: int, size: int, steps: Sequence[ContentId], tree: ContentId) -> bool:
    """Whether `leaf` is number `index` of a list of `size` items with the hash `tree`."""
    if not 0 <= index < size < 1 << 63:
        return False
    hashed, last, rest = content_id(_LEAF + leaf), size - 1, iter(steps)
    while last:
        # Whoever is last of an odd number has nobody beside it, and moves up as it is.
        if index % 2 or index < last:
            beside = next(rest, None)
            if beside is None:
                return False
            hashed = _above(beside, hashed) if index % 2 else _above(hashed, beside)
        index, last = index >> 1, last >> 1
    return next(rest, None) is None and _closed(size, hashed) == tree


def _levels(leaves: Sequence[bytes]) -> list[list[ContentId]]:
    """The hashes of the leaves, of those above them, and so on up to the only one."""
    levels = [[content_id(_LEAF + leaf) for leaf in leaves]]
    while len(levels[-1]) > 1:
        below = levels[-1]
        above = [_above(*below[at : at + 2]) for at in range(0, len(below) - 1, 2)]
        levels.append(above + below[len(below) & ~1 :])
    return levels


def _above(left: ContentId, right: ContentId) -> ContentId:
    return content_id(_NODE + left + right)


def _closed(size: int, top: ContentId) -> ContentId:
    return content_id(_TREE + size.to_bytes(8, "big") + top)
