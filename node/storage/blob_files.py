"""Files in one directory, each named by a content id, and judged whenever it is read.

All that `get` returns is what its id stands for, even after bit rot, a power cut or a full disk; a file
is either there whole or not at all. Several processes may share one directory. What an id stands for is
said by a subclass.
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
from ..system_errors import FULL
from .atomic_write import write_atomically

_log = logging.getLogger(__name__)

_TEMPORARY = ".temporary-"
# A write of 16 MiB takes seconds; a temporary file that is older belongs to a process that died.
_TEMPORARY_LIFETIME_SECONDS = 3600.0


class DiskFull(OSError):
    """The disk, or the user's quota on it, has no room for a blob; nothing of it is left behind."""


class BlobFiles(ABC):
    """The files below `root`, a directory that is created if it is missing. Raises `OSError` where the
    disk does."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self._remove_leftovers()

    @abstractmethod
    def keep(self, cid: ContentId, data: bytes) -> bool:
        """Store what somebody gave for an id, if it is that. Raises `DiskFull`."""

    @abstractmethod
    def _sound(self, data: bytes, cid: ContentId) -> bool:
        """Whether these are bytes that an id stands for."""

    def path(self, cid: ContentId) -> Path:
        """Where this blob lies, whether or not it is there. Nobody may write to it."""
        return self.root / content_text(cid)

    def get(self, cid: ContentId) -> bytes | None:
        """The bytes of a blob, or None if it is not here. A corrupt file is removed, and that said."""
        path = self.path(cid)
        try:
            data = self._read(path)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            # The disk has lost a piece of it: a new copy lands elsewhere.
            _log.warning(
                "a blob cannot be read, and is dropped: %s (%s)", path.name, error.strerror
            )
            path.unlink(missing_ok=True)
            return None
        if data is None or self._sound(data, cid):
            return data
        return self._take_out(path, cid)

    def has(self, cid: ContentId) -> bool:
        """Whether a file for this blob is there; only `get` checks what is in it."""
        return self.path(cid).is_file()

    def size(self, cid: ContentId) -> int | None:
        """The bytes of a blob, None if it is not here."""
        try:
            return self.path(cid).stat().st_size
        except FileNotFoundError:
            return None

    def remove(self, cid: ContentId) -> bool:
        """Remove a blob. False if it was not there."""
        files = self.set_aside([cid])
        self.free(files)
        return bool(files)

    def set_aside(self, cids: Iterable[ContentId]) -> list[Path]:
        """Take blobs out of the store at once, for `free` to remove: large files take their time."""
        files = []
        for cid in cids:
            with contextlib.suppress(FileNotFoundError):
                files.append(self.path(cid).replace(self._temporary_path()))
        return files

    @staticmethod
    def free(files: Iterable[Path]) -> None:
        """Remove what was set aside, in any thread."""
        for path in files:
            path.unlink(missing_ok=True)

    def ids(self) -> Iterator[ContentId]:
        """The ids of all blobs, in no order."""
        with os.scandir(self.root) as entries:
            for entry in entries:
                # Files that are not ours are left alone and not reported.
                with contextlib.suppress(ValueError):
                    yield content_from_text(entry.name)

    def _read(self, path: Path) -> bytes | None:
        try:
            with path.open("rb") as file:
                # So many bytes are taken from memory at once, however small the file is. One more than
                # allowed is enough to see that it is not one of ours.
                size = os.fstat(file.fileno()).st_size
                return file.read(min(size, MAX_BLOB_BYTES) + 1)
        except FileNotFoundError:
            return None

    def _write(self, path: Path, data: bytes | memoryview) -> None:
        try:
            # Under a name of its own: another process may be writing the same blob.
            write_atomically(path, data, self._temporary_path())
        except OSError as error:
            if error.errno in FULL:
                raise DiskFull(
                    error.errno, f"no room for {len(data)} bytes in {self.root}"
                ) from error
            raise

    def _take_out(self, path: Path, cid: ContentId) -> bytes | None:
        """Remove a file that was found corrupt; return its bytes if it turns out to be sound.

        Another process may have put a sound copy in its place since it was read, so the file is
        moved aside first and judged once more where nobody else touches it.
        """
        aside = self._temporary_path()
        try:
            path.replace(aside)
        except FileNotFoundError:
            return None
        data = self._read(aside)
        if data is not None and self._sound(data, cid):
            aside.replace(path)
            return data
        _log.warning("a blob is not what it was, and is dropped: %s", path.name)
        aside.unlink(missing_ok=True)
        return None

    def _temporary_path(self) -> Path:
        return self.root / f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}"

    def _remove_leftovers(self) -> None:
        oldest = time.time() - _TEMPORARY_LIFETIME_SECONDS
        for path in self.root.glob(f"{_TEMPORARY}*"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < oldest:
                    path.unlink()
