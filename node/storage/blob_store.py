"""Blobs on disk: one file a blob, named by its content id, to which its bytes hash."""

from __future__ import annotations

from ...crypto.hashing import ContentId, content_id
from ...protocol.wire.blobs import MAX_BLOB_BYTES
from .blob_files import BlobFiles


class BlobStore(BlobFiles):
    """The blobs below `root`. Raises nothing but what its base does, and `ValueError` for a blob that is
    too large."""

    def put(self, data: bytes | memoryview) -> ContentId:
        """Store a blob durably and return its id; storing it again costs a read, no more.

        Raises `DiskFull`, and `ValueError` for more than `MAX_BLOB_BYTES`.
        """
        if len(data) > MAX_BLOB_BYTES:
            raise ValueError(f"a blob has at most {MAX_BLOB_BYTES} bytes, not {len(data)}")
        cid = content_id(data)
        # Compared rather than trusted: putting a blob again mends a copy that has rotted.
        if self._read(self.path(cid)) != data:
            self._write(self.path(cid), data)
        return cid

    def keep(self, cid: ContentId, data: bytes) -> bool:
        """Store what somebody gave for an id, if it is that. Raises `DiskFull`."""
        if not self._sound(data, cid):
            return False
        self.put(data)
        return True

    def _sound(self, data: bytes, cid: ContentId) -> bool:
        return len(data) <= MAX_BLOB_BYTES and content_id(data) == cid
