"""Content ids and Merkle roots over BLAKE3-256.

Equal ids mean equal bytes, and equal roots mean equal lists: neither the order nor the number of
the leaves can change without the root changing.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import NewType

from blake3 import blake3

ContentId = NewType("ContentId", bytes)
"""BLAKE3-256 of some bytes, 32 bytes."""

CONTENT_ID_BYTES = 32

# Contexts of BLAKE3's key derivation mode: hashes under different contexts are independent of each
# other and of the plain mode, so no leaf, inner node, root or content id can pass for another.
_LEAF_CONTEXT = "distro-node 2026 merkle v1 leaf"
_INNER_CONTEXT = "distro-node 2026 merkle v1 inner"
_ROOT_CONTEXT = "distro-node 2026 merkle v1 root"

# 32 bytes in base32: ceil(256 / 5) characters.
_TEXT_LENGTH = 52


def content_id(data: bytes | memoryview) -> ContentId:
    """Return the BLAKE3-256 hash of `data`."""
    return ContentId(blake3(data).digest())


def merkle_root(leaves: Sequence[ContentId]) -> ContentId:
    """Return the one id that stands for this list of content ids; the list may be empty.

    Neighbours are joined level by level; an odd one out at the end of a level moves up unchanged.
    The number of leaves fixes the shape of the tree and is hashed into the root, so two lists
    with one root would be a collision of BLAKE3.

    Raises `ValueError` for a leaf that is not 32 bytes.
    """
    for index, leaf in enumerate(leaves):
        if len(leaf) != CONTENT_ID_BYTES:
            raise ValueError(f"leaf {index} has {len(leaf)} bytes, a content id has 32")
    level = [_derive(_LEAF_CONTEXT, leaf) for leaf in leaves]
    while len(level) > 1:
        pairs = [
            _derive(_INNER_CONTEXT, level[index] + level[index + 1])
            for index in range(0, len(level) - 1, 2)
        ]
        level = pairs + level[len(pairs) * 2 :]
    return ContentId(_derive(_ROOT_CONTEXT, len(leaves).to_bytes(8, "big") + b"".join(level)))


def content_text(cid: ContentId) -> str:
    """Write a content id as 52 characters of lower-case base32 (RFC 4648) without padding."""
    if len(cid) != CONTENT_ID_BYTES:
        raise ValueError(f"a content id has {CONTENT_ID_BYTES} bytes, not {len(cid)}")
    return base64.b32encode(cid).decode("ascii").rstrip("=").lower()


def content_from_text(text: str) -> ContentId:
    """Read what `content_text` wrote, and that spelling alone.

    Raises `ValueError` for anything else: upper case, padding, another length, or set bits behind
    the 256th.
    """
    if len(text) != _TEXT_LENGTH:
        raise ValueError(f"a content id has {_TEXT_LENGTH} characters, not {len(text)}")
    try:
        cid = ContentId(base64.b32decode(text.upper() + "===="))
    except (binascii.Error, ValueError):
        raise ValueError("not a content id: a character is not of lower-case base32") from None
    # 52 characters hold 260 bits: the last four must be zero, or one id would have 16 spellings.
    if content_text(cid) != text:
        raise ValueError("not a content id: not in its one lower-case spelling")
    return cid


def _derive(context: str, data: bytes) -> bytes:
    return blake3(data, derive_key_context=context).digest()
