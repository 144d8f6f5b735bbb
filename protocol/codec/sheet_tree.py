"""What a sheet is called, so that each part of it can be had and checked alone.

A Merkle tree (RFC 9162, section 2.1.1, has the shape): the leaves are the content ids of the parts in
the order of the sections, and the id of a node is the content id of

    byte 0          2 for a node that has two children, 3 for the sheet
    the rest        of a node: the ids of its children
                    of the sheet: how many sections there are (2 bytes), the id of the topmost node

Above an odd number of nodes, the last one stands for itself. Parts begin with another byte, so no part
is a node. The id of the sheet is announced. A speaker asks for a part by a name that follows from it,
and gets the part with the ids beside its way up, the lowest first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from ...crypto.hashing import CONTENT_ID_BYTES, ContentId, content_id
from ..wire.errors import ProtocolError

_NODE, _SHEET = bytes([2]), bytes([3])
_NAME = b"distro-node part of a sheet"


def sheet_id(parts: Sequence[ContentId]) -> ContentId:
    """The id of the sheet with these parts, of which there is one at least."""
    *_, (top,) = _levels(parts)
    return _called(len(parts), top)


def part_name(sheet: ContentId, section: int, sections: int) -> ContentId:
    """What a section's part of a sheet, cut into so many, is asked for by."""
    return content_id(_NAME + sheet + section.to_bytes(2, "big") + sections.to_bytes(2, "big"))


def with_way(parts: Sequence[ContentId], section: int, part: bytes) -> bytes:
    """A section's part, and behind it what shows that it is of this sheet."""
    place, way = section, b""
    for level in _levels(parts):
        beside = place ^ 1
        if beside < len(level):
            way += level[beside]
        place //= 2
    return part + way


def way_bytes(section: int, sections: int) -> int:
    """How many bytes a section's part has behind it."""
    place, nodes, beside = section, sections, 0
    while nodes > 1:
        beside += (place ^ 1) < nodes
        place, nodes = place // 2, -(-nodes // 2)
    return beside * CONTENT_ID_BYTES


def open_part(sheet: ContentId, section: int, sections: int, data: bytes) -> bytes:
    """The part out of what `with_way` made.

    Raises `ProtocolError`: `malformed` if it is not this section's, of this sheet, cut into so many.
    """
    end = len(data) - way_bytes(section, sections)
    if end < 0:
        raise ProtocolError("malformed", f"{len(data)} bytes are too few for a part of a sheet")
    part, place, nodes = data[:end], section, sections
    found = content_id(part)
    while nodes > 1:
        if place ^ 1 < nodes:
            beside = data[end : end + CONTENT_ID_BYTES]
            end += CONTENT_ID_BYTES
            found = content_id(_NODE + (beside + found if place & 1 else found + beside))
        place, nodes = place // 2, -(-nodes // 2)
    if _called(sections, found) != sheet:
        raise ProtocolError("malformed", "these bytes are no part of that sheet")
    return part


def _levels(parts: Sequence[ContentId]) -> Iterator[Sequence[ContentId]]:
    """The ids of the nodes of each level, from the parts up to the topmost alone."""
    level = parts
    while True:
        yield level
        if len(level) <= 1:
            return
        pairs = zip_longest(level[::2], level[1::2])
        level = [one if two is None else content_id(_NODE + one + two) for one, two in pairs]


def _called(sections: int, top: ContentId) -> ContentId:
    return content_id(_SHEET + sections.to_bytes(2, "big") + top)
