"""Storage of a stream of tokens as shards in the blob store."""

from __future__ import annotations

import numpy as np

from ...crypto.hashing import ContentId
from ...protocol.wire.blobs import CHUNK_BYTES, BlobList
from ...protocol.wire.manifest import ShardSpec
from ..storage.blob_store import BlobStore

# Bytes of a shard. The manifest, of at most two megabytes, can name 40,000 shards, which is 2.5 TB of
# tokens; and the blob list of one shard is still fetched quickly.
SHARD_BYTES = 16 * CHUNK_BYTES


class ShardWriter:
    """Writer that divides a stream of tokens into shards, and these into chunks; it stores each when it
    is full."""

    def __init__(self, store: BlobStore, token_bytes: int) -> None:
        self._store = store
        self._token_bytes = token_bytes
        self._type = np.dtype(f"<u{token_bytes}")
        self._buffer = bytearray()
        self._chunks: list[ContentId] = []
        self._size = 0
        self._shards: list[ShardSpec] = []

    def add(self, tokens: np.ndarray) -> None:
        """Append tokens. Raises `OSError` as files do."""
        self._buffer += tokens.astype(self._type).tobytes()
        # A chunk is a multiple of 4 bytes, so no token is cut in two.
        while len(self._buffer) >= CHUNK_BYTES:
            self._put(bytes(self._buffer[:CHUNK_BYTES]))
            del self._buffer[:CHUNK_BYTES]
            if self._size >= SHARD_BYTES:
                self._close()

    def end_shard(self) -> None:
        """Store what is left, so that the next token begins a new shard."""
        if self._buffer:
            self._put(bytes(self._buffer))
            self._buffer.clear()
        if self._chunks:
            self._close()

    def finish(self) -> list[ShardSpec]:
        """Store what is left, and return all shards."""
        self.end_shard()
        return self._shards

    def _put(self, chunk: bytes) -> None:
        self._chunks.append(self._store.put(chunk))
        self._size += len(chunk)

    def _close(self) -> None:
        blobs = BlobList("shard", self._size, tuple(self._chunks))
        tokens = self._size // self._token_bytes
        self._shards.append(ShardSpec(blob=self._store.put(blobs.encode()), tokens=tokens))
        self._chunks, self._size = [], 0
