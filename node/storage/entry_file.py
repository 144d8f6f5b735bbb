"""Append-only file of byte strings: the ledger's entries, and a node's signed messages.

An entry cut off by a crash is detected when the file is next read, and dropped; the entries before it
stay valid.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path

from .atomic_write import replacing, sync

_log = logging.getLogger(__name__)

_LENGTH_BYTES = 4


def framed(entry: bytes) -> bytes:
    """Return an entry as it is in an `EntryFile`."""
    return len(entry).to_bytes(_LENGTH_BYTES, "big") + entry


class EntryFile:
    """An append-only file of byte strings, each preceded by its length in 4 bytes, big-endian.

    Raises `OSError` as files do; a failed append leaves the entries before it intact.
    """

    def __init__(self, path: Path, max_entry: int) -> None:
        self.path = path
        self._max_entry = max_entry
        self._file: FileIO | None = None
        self._durable = 0

    def read(self, *, repair: bool, start: int = 0) -> Iterator[bytes]:
        """Yield all complete entries in order, from the byte `start` on, where one begins.

        `repair`: cut off an incomplete end, so that appending can continue. Do not use it while another
        process writes the file: an entry being written looks incomplete.
        """
        if not self.path.exists():
            return
        intact_bytes = start
        with self.path.open("rb") as file:
            file.seek(start)
            while True:
                prefix = file.read(_LENGTH_BYTES)
                length = int.from_bytes(prefix, "big")
                if len(prefix) < _LENGTH_BYTES or length > self._max_entry:
                    break
                entry = file.read(length)
                if len(entry) < length:
                    break
                intact_bytes += _LENGTH_BYTES + length
                yield entry
        size = self.path.stat().st_size
        if repair and intact_bytes < size:
            _log.warning(
                "the last %d bytes of %s belong to an incomplete entry, so they are removed",
                size - intact_bytes,
                self.path,
            )
            os.truncate(self.path, intact_bytes)

    def append(self, entry: bytes) -> None:
        """Append an entry, which is on the disk after the next `sync`."""
        file = self._open()
        try:
            remaining = memoryview(framed(entry))
            while remaining:
                remaining = remaining[file.write(remaining) :]
        except OSError:
            self._undo_write()
            raise

    def sync(self) -> None:
        """Wait until all entries are on the disk."""
        if self._file is None:
            return
        try:
            os.fsync(self._file.fileno())
        except OSError:
            self._undo_write()
            raise
        self._durable = self._file.tell()

    def replace(self, entries: Iterable[bytes]) -> None:
        """Durably and atomically replace all entries by these."""
        self.close()
        with replacing(self.path) as temporary, temporary.open("wb") as file:
            for entry in entries:
                file.write(framed(entry))

    def truncate(self, size: int) -> None:
        """Durably keep only the first `size` bytes, which end with an entry."""
        self.close()
        os.truncate(self.path, size)
        sync(self.path)

    def close(self) -> None:
        """Close the file; the next append opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> FileIO:
        if self._file is None:
            # Unbuffered, so that a failed write leaves nothing that a later close would retry.
            self._file = self.path.open("ab", buffering=0)
            self._durable = self._file.tell()
            # The file may be new; its name has to be durable, too.
            sync(self.path.parent)
        return self._file

    def _undo_write(self) -> None:
        """Truncate the file to its durable part after a failed write, as far as that still works."""
        self.close()
        os.truncate(self.path, self._durable)
