"""Files in one directory, each named by a content id and verified whenever it is read.

`get` returns only content that matches its id, even after bit rot, a power cut or a full disk; a file is
there completely or not at all. Several processes may share one directory. A subclass defines which
content matches an id.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...crypto.hashing import ContentId, content_from_text, content_text
from ...protocol.wire.blobs import MAX_BLOB_BYTES
from ..util.system_errors import FULL
from .atomic_write import sync, write_atomically

_log = logging.getLogger(__name__)

_TEMPORARY = ".temporary-"
# Writing 16 MiB takes seconds; an older temporary file belongs to a process that died.
_TEMPORARY_LIFETIME_SECONDS = 3600.0


class DiskFull(OSError):
    """The disk, or the user's quota on it, has no room for a blob; no part of it is left on the disk."""


class BlobFiles(ABC):
    """The files in the directory `root`, which is created if missing. Raises `OSError` on disk
    errors."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self._remove_leftovers()

    @abstractmethod
    def keep(self, cid: ContentId, data: bytes) -> bool:
        """Store content received for an id if it matches; return whether it does. Raises `DiskFull`."""

    @abstractmethod
    def _matches(self, data: bytes, cid: ContentId) -> bool:
        """Whether the content matches the id."""

    def path(self, cid: ContentId) -> Path:
        """Return the path of this blob, whether or not it exists. Read only: no caller may write to
        it."""
        return self.root / content_text(cid)

    def get(self, cid: ContentId) -> bytes | None:
        """Return a blob's content, or None if it is not here. A corrupt file is removed with a
        warning."""
        path = self.path(cid)
        try:
            data = self._read(path)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            # Part of the file is unreadable; a new copy will occupy other sectors.
            _log.warning(
                "a blob cannot be read, so it is deleted: %s (%s)", path.name, error.strerror
            )
            path.unlink(missing_ok=True)
            return None
        if data is None or self._matches(data, cid):
            return data
        return self._remove_corrupt(path, cid)

    def has(self, cid: ContentId) -> bool:
        """Whether a file for this blob exists; only `get` verifies its content."""
        return self.path(cid).is_file()

    def size(self, cid: ContentId) -> int | None:
        """Return the size of a blob in bytes, None if it is not here."""
        try:
            return self.path(cid).stat().st_size
        except FileNotFoundError:
            return None

    def remove(self, cid: ContentId) -> bool:
        """Remove a blob. Return whether it was there."""
        files = self.set_aside([cid])
        self.delete_files(files)
        return bool(files)

    def take(self, other: BlobFiles) -> None:
        """Move all blobs of another store here, durably. Its directory is on the same disk."""
        for cid in list(other.ids()):
            other.path(cid).replace(self.path(cid))
        sync(self.root)

    def set_aside(self, cids: Iterable[ContentId]) -> list[Path]:
        """Take blobs out of the store at once, and return their files for `delete_files`, because
        deleting large files takes a while."""
        files = []
        for cid in cids:
            with contextlib.suppress(FileNotFoundError):
                files.append(self.path(cid).replace(self._temporary_path()))
        return files

    @staticmethod
    def delete_files(files: Iterable[Path]) -> None:
        """Delete files that were set aside, in any thread."""
        for path in files:
            path.unlink(missing_ok=True)

    def ids(self) -> Iterator[ContentId]:
        """Yield the ids of all blobs, in no particular order."""
        with os.scandir(self.root) as entries:
            for entry in entries:
                # Foreign files are left alone and skipped.
                with contextlib.suppress(ValueError):
                    yield content_from_text(entry.name)

    def _read(self, path: Path) -> bytes | None:
        try:
            with path.open("rb") as file:
                # `read` allocates the requested size, however small the file is. One byte more than
                # allowed is enough to detect a file that is too large.
                size = os.fstat(file.fileno()).st_size
                return file.read(min(size, MAX_BLOB_BYTES) + 1)
        except FileNotFoundError:
            return None

    def _write(self, path: Path, data: bytes | memoryview) -> None:
        try:
            # Under a unique temporary name, since another process may be writing the same blob.
            write_atomically(path, data, self._temporary_path())
        except OSError as error:
            if error.errno in FULL:
                raise DiskFull(
                    error.errno, f"no room for {len(data)} bytes in {self.root}"
                ) from error
            raise

    def _remove_corrupt(self, path: Path, cid: ContentId) -> bytes | None:
        """Remove a file that was found corrupt; return its content if it turns out to be sound.

        Another process may have replaced it by a sound copy since it was read, so the file is moved
        aside first and verified once more where no other process touches it.
        """
        temporary = self._temporary_path()
        try:
            path.replace(temporary)
        except FileNotFoundError:
            return None
        data = self._read(temporary)
        if data is not None and self._matches(data, cid):
            temporary.replace(path)
            return data
        _log.warning(
            "a blob's content no longer matches its content id, so it is deleted: %s", path.name
        )
        temporary.unlink(missing_ok=True)
        return None

    def _temporary_path(self) -> Path:
        return self.root / f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}"

    def _remove_leftovers(self) -> None:
        oldest = time.time() - _TEMPORARY_LIFETIME_SECONDS
        for path in self.root.glob(f"{_TEMPORARY}*"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < oldest:
                    path.unlink()
