"""Blobs on disk: one file per blob, named by its content id, the hash of its bytes."""

from __future__ import annotations

from ...crypto.hashing import ContentId, content_id
from ...protocol.wire.blobs import MAX_BLOB_BYTES
from .blob_files import BlobFiles


class BlobStore(BlobFiles):
    """The blobs in the directory `root`. Raises what its base class raises, and `ValueError` for a blob
    that is too large."""

    def put(self, data: bytes | memoryview) -> ContentId:
        """Store a blob durably and return its id; storing it again costs only a read.

        Raises `DiskFull`, and `ValueError` for more than `MAX_BLOB_BYTES`.
        """
        if len(data) > MAX_BLOB_BYTES:
            raise ValueError(f"a blob has at most {MAX_BLOB_BYTES} bytes, not {len(data)}")
        cid = content_id(data)
        # Compared instead of assumed: storing a blob again repairs a corrupt copy.
        if self._read(self.path(cid)) != data:
            self._write(self.path(cid), data)
        return cid

    def keep(self, cid: ContentId, data: bytes) -> bool:
        """Store content received for an id if it matches; return whether it does. Raises `DiskFull`."""
        if not self._matches(data, cid):
            return False
        self.put(data)
        return True

    def _matches(self, data: bytes, cid: ContentId) -> bool:
        return len(data) <= MAX_BLOB_BYTES and content_id(data) == cid
