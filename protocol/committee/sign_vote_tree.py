"""Merkle tree of a sign vote. Its root is the sign vote's id, so that each part can be fetched and
checked by itself.

The tree has the shape of RFC 9162, section 2.1.1: the leaves are the content ids of the parts in the
order of the sections, and the id of a node is the content id of

    byte 0          2 for a node with two children, 3 for the sign vote
    the rest        for a node: the ids of its children
                    for the sign vote: the number of sections (2 bytes), the id of the topmost node

On a level with an odd number of nodes, the last one moves up unchanged. Parts begin with another byte,
so that no part can be taken for a node. Members announce the id of their sign vote. An aggregator
requests a part by a name derived from that id, and receives the part followed by its inclusion proof:
the sibling hashes on the path to the root, the lowest first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from ...crypto.hashing import CONTENT_ID_BYTES, ContentId, content_id
from ..wire.errors import ProtocolError

_NODE, _SIGN_VOTE = bytes([2]), bytes([3])
_NAME = b"distro-node part of a sheet"


def sign_vote_id(parts: Sequence[ContentId]) -> ContentId:
    """Return the id of the sign vote with these parts, at least one."""
    *_, (top,) = _levels(parts)
    return _root_id(len(parts), top)


def part_name(sign_vote: ContentId, section: int, sections: int) -> ContentId:
    """Return the name by which a section's part of a sign vote, cut into `sections`, is requested."""
    return content_id(_NAME + sign_vote + section.to_bytes(2, "big") + sections.to_bytes(2, "big"))


def with_proof(parts: Sequence[ContentId], section: int, part: bytes) -> bytes:
    """Return a section's part, followed by its inclusion proof."""
    place, proof = section, b""
    for level in _levels(parts):
        sibling = place ^ 1
        if sibling < len(level):
            proof += level[sibling]
        place //= 2
    return part + proof


def proof_bytes(section: int, sections: int) -> int:
    """Return the length in bytes of the inclusion proof of a section's part."""
    place, nodes, siblings = section, sections, 0
    while nodes > 1:
        siblings += (place ^ 1) < nodes
        place, nodes = place // 2, -(-nodes // 2)
    return siblings * CONTENT_ID_BYTES


def open_part(sign_vote: ContentId, section: int, sections: int, data: bytes) -> bytes:
    """Return the part from `data`, the output of `with_proof`, after checking its inclusion proof.

    Raises `ProtocolError`: `malformed` if it is not this section's part of this sign vote, cut into
    `sections`.
    """
    end = len(data) - proof_bytes(section, sections)
    if end < 0:
        raise ProtocolError("malformed", f"{len(data)} bytes are too few for a part of a sign vote")
    part, place, nodes = data[:end], section, sections
    found = content_id(part)
    while nodes > 1:
        if place ^ 1 < nodes:
            sibling = data[end : end + CONTENT_ID_BYTES]
            end += CONTENT_ID_BYTES
            found = content_id(_NODE + (sibling + found if place & 1 else found + sibling))
        place, nodes = place // 2, -(-nodes // 2)
    if _root_id(sections, found) != sign_vote:
        raise ProtocolError("malformed", "these bytes are not a part of that sign vote")
    return part


def _levels(parts: Sequence[ContentId]) -> Iterator[Sequence[ContentId]]:
    """Yield the ids of the nodes of each level, from the parts up to the topmost node alone."""
    level = parts
    while True:
        yield level
        if len(level) <= 1:
            return
        pairs = zip_longest(level[::2], level[1::2])
        level = [one if two is None else content_id(_NODE + one + two) for one, two in pairs]


def _root_id(sections: int, top: ContentId) -> ContentId:
    return content_id(_SIGN_VOTE + sections.to_bytes(2, "big") + top)
