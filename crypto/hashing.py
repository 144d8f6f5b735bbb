"""Content ids: BLAKE3-256. Equal ids mean equal bytes.

A list of chunks is itself a blob (protocol/wire/blobs.py), so its content id commits to all of them, as
a Merkle root would at the depth of two that snapshots and shards need.
"""

from __future__ import annotations

import base64
import binascii
from typing import NewType

from blake3 import blake3

ContentId = NewType("ContentId", bytes)
"""BLAKE3-256 of some bytes, 32 bytes."""

CONTENT_ID_BYTES = 32

# 32 bytes in base32: ceil(256 / 5) characters.
_TEXT_LENGTH = 52


def content_id(data: bytes | memoryview) -> ContentId:
    """Return the BLAKE3-256 hash of `data`."""
    return ContentId(blake3(data).digest())


def content_text(cid: ContentId) -> str:
    """Write a content id as 52 characters of lower-case base32 (RFC 4648) without padding."""
    if len(cid) != CONTENT_ID_BYTES:
        raise ValueError(f"a content id has {CONTENT_ID_BYTES} bytes, not {len(cid)}")
    return base64.b32encode(cid).decode("ascii").rstrip("=").lower()


def content_from_text(text: str) -> ContentId:
    """Read a text of `content_text`, in that spelling only.

    Raises `ValueError` for anything else: upper case, padding, another length, or set bits after
    the 256th.
    """
    if len(text) != _TEXT_LENGTH:
        raise ValueError(f"a content id has {_TEXT_LENGTH} characters, not {len(text)}")
    try:
        cid = ContentId(base64.b32decode(text.upper() + "===="))
    except (binascii.Error, ValueError):
        raise ValueError("not a content id: a character is outside lower-case base32") from None
    # 52 characters hold 260 bits: the last four must be zero, or one id would have 16 spellings.
    if content_text(cid) != text:
        raise ValueError("not a content id: not in canonical form")
    return cid
