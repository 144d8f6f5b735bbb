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
        file = self._file.fileno()
        length = int.from_bytes(read_at(file, _LENGTH_BYTES, offset), "big")
        return read_at(file, length, offset + _LENGTH_BYTES)
