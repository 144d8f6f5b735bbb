"""Blob lists: names for data larger than one blob.

A blob is at most `MAX_BLOB_BYTES` and is fetched by its content id. Snapshots and data shards are
longer; they are cut into chunks, and a small blob, the *blob list*, names the chunks in order. Its
content id therefore commits to every byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ...crypto.hashing import ContentId
from .encoding import decode, encode
from .errors import ProtocolError
from .structure import Length, Range

MAX_BLOB_BYTES = 16 << 20
"""Maximum size of a blob, and so of one request for data; it bounds the memory of a download."""

CHUNK_BYTES = 4 << 20
"""Size of a chunk: small enough that a slow connection shows progress and loses little if it breaks."""

MAX_CHUNKS = 1 << 17

# A list takes 34 bytes per chunk, so the longest one (for 512 GiB) fits. A model of 70 billion
# parameters in float32 has 280 GB.
MAX_BLOB_LIST_BYTES = 5 << 20


@dataclass(frozen=True)
class BlobList:
    """`size` bytes in chunks of `CHUNK_BYTES`; the last one may be shorter."""

    kind: Literal["snapshot", "shard"]
    size: Annotated[int, Range(1, 2**50)]
    chunks: Annotated[tuple[ContentId, ...], Length(1, MAX_CHUNKS)]

    def __post_init__(self) -> None:
        if len(self.chunks) != -(-self.size // CHUNK_BYTES):
            raise ValueError(f"{self.size} bytes do not fit {len(self.chunks)} chunks")

    def encode(self) -> bytes:
        """Return the blob's bytes."""
        return encode(self)


def decode_any_blob_list(data: bytes) -> BlobList:
    """Decode a blob list of any kind and size. Raises `ProtocolError`."""
    return decode(BlobList, data, max_bytes=MAX_BLOB_LIST_BYTES)


def decode_blob_list(data: bytes, kind: Literal["snapshot", "shard"], size: int) -> BlobList:
    """Decode a blob list that must be of this kind and name this many bytes.

    Raises `ProtocolError`: `mismatch` if it is not; as `decode_any_blob_list` if it is unreadable.
    """
    blobs = decode_any_blob_list(data)
    if blobs.kind != kind or blobs.size != size:
        raise ProtocolError(
            "mismatch",
            f"expected a {kind} of {size} bytes, the list names a {blobs.kind} of {blobs.size}",
        )
    return blobs
