"""The count of bytes that a peer has relayed between others, over all its starts: its own, unverified
count.

It is stored as a file with one number, replaced atomically. If the file cannot be read the count
restarts at zero; if it cannot be written the count continues in memory. The node relays in either case.
"""

from __future__ import annotations

import logging
from pathlib import Path

from .atomic_write import write_atomically

_log = logging.getLogger(__name__)

# More bytes than any connection ever transfers, and within 63 bits.
_MAX_COUNT = 1 << 62
# The digits of that number and a line break.
_MAX_BYTES = 20


class RelayedBytes:
    """The count of this start on top of earlier ones. `total` is the sum as of the last `note`."""

    def __init__(self, path: Path | None = None) -> None:
        """Without a `path` nothing is stored."""
        self._path = path
        self._earlier_starts = self._stored = self.total = 0 if path is None else read_relayed(path)

    def note(self, since_start: int) -> None:
        """Set the number of bytes relayed since this start."""
        self.total = min(self._earlier_starts + since_start, _MAX_COUNT)

    def keep(self) -> None:
        """Store the count if it has changed. Call it from one thread at a time."""
        total = self.total
        if self._path is None or total == self._stored:
            return
        try:
            write_atomically(self._path, b"%d\n" % total)
            self._stored = total
        except OSError as error:
            _log.warning(
                "the count of relayed bytes in %s cannot be written: %s", self._path, error
            )


def read_relayed(path: Path) -> int:
    """Return the number in the file; 0 if the file is missing or invalid."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1).decode("ascii").rstrip("\n")
    except FileNotFoundError:
        return 0
    except (OSError, ValueError) as error:
        _log.warning("the count of relayed bytes in %s cannot be read: %s", path, error)
        return 0
    if text.isdecimal() and int(text) <= _MAX_COUNT:
        return int(text)
    _log.warning("the count of relayed bytes in %s is damaged, so it starts again from 0", path)
    return 0
