"""Older ledger entries on disk, to save memory.

They are in an unnamed file that disappears with the process. A restarted node has no use for this file:
it reads the ledger's own file, and the entries here may belong to an abandoned chain.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from pathlib import Path

from ..util.operating_system import read_at, write_at

_log = logging.getLogger(__name__)

_LENGTH_BYTES = 4


class MemorySpill:
    """Entries in memory, for a process that may write no file."""

    def __init__(self) -> None:
        self._entries: list[bytes] = []

    def put(self, entry: bytes) -> int:
        """Store `entry` and return its offset."""
        self._entries.append(entry)
        return -len(self._entries)

    def get(self, offset: int) -> bytes:
        """Return the entry at `offset`."""
        return self._entries[-1 - offset]


class LedgerSpill:
    """The entries at the start of a ledger file, where they are, and later ones in another spill file.

    The ledger file is only appended to and replaced, so what was open stays readable. Raises `OSError`
    as files do.
    """

    def __init__(self, ledger: Path, end: int, later: SpillFile | MemorySpill) -> None:
        """`end`: the length of the start in bytes."""
        self._file = ledger.open("rb", buffering=0)
        self._end = end
        self._later = later

    def put(self, entry: bytes) -> int:
        """Store `entry` and return its offset."""
        offset = self._later.put(entry)
        return offset if offset < 0 else self._end + offset

    def get(self, offset: int) -> bytes:
        """Return the entry at `offset`."""
        if not 0 <= offset < self._end:
            return self._later.get(offset if offset < 0 else offset - self._end)
        return _read_entry(self._file.fileno(), offset)


class SpillFile:
    """A file in `folder` for the older entries of an `EntryStore` (`protocol.chain.entry_store`).

    Raises `OSError` if the file cannot be created or read; an entry that cannot be written (a full disk)
    stays in memory.
    """

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  (closes with us)
        self._end = 0
        # A thread that compares chains calls `put`, too.
        self._lock = threading.Lock()
        # Entries that could not be written, by the negative offset that `put` returned.
        self._unwritten: dict[int, bytes] = {}

    def put(self, entry: bytes) -> int:
        """Store `entry` and return its offset."""
        framed = len(entry).to_bytes(_LENGTH_BYTES, "big") + entry
        with self._lock:
            return self._put(entry, framed)

    def _put(self, entry: bytes, framed: bytes) -> int:
        try:
            # A short write means a full disk; the next entry overwrites the remains.
            complete = write_at(self._file.fileno(), framed, self._end) == len(framed)
        except OSError:
            complete = False
        if not complete:
            if not self._unwritten:
                _log.warning("no disk space for older ledger entries: they stay in memory")
            offset = -1 - len(self._unwritten)
            self._unwritten[offset] = entry
            return offset
        offset = self._end
        self._end += len(framed)
        return offset

    def get(self, offset: int) -> bytes:
        """Return the entry at `offset`."""
        if offset < 0:
            return self._unwritten[offset]
        return _read_entry(self._file.fileno(), offset)


def _read_entry(file: int, offset: int) -> bytes:
    length = int.from_bytes(read_at(file, _LENGTH_BYTES, offset), "big")
    return read_at(file, length, offset + _LENGTH_BYTES)
