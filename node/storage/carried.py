"""How many bytes a peer has carried between others, over all its starts: its own count, which nobody
can check.

A file of one number, replaced whole. Where it cannot be read the count begins again; where it cannot be
written it goes on in memory alone. Neither is a reason to carry nothing.
"""

from __future__ import annotations

import logging
from pathlib import Path

from .atomic_write import write_atomically

_log = logging.getLogger(__name__)

# Beyond what any line brings together, and within 63 bits.
_LARGEST = 1 << 62
# As many digits, and a line's end.
_MOST_BYTES = 20


class Carried:
    """The count of one start on top of those before. `total` is it as far as it was told."""

    def __init__(self, path: Path | None = None) -> None:
        """Without a `path` nothing outlasts it."""
        self._path = path
        self._before = self._kept = self.total = 0 if path is None else read_carried(path)

    def note(self, since_start: int) -> None:
        """So many bytes were carried since this start."""
        self.total = min(self._before + since_start, _LARGEST)

    def keep(self) -> None:
        """Put the count on the disk, unless it is there. By one thread at a time."""
        total = self.total
        if self._path is None or total == self._kept:
            return
        try:
            write_atomically(self._path, b"%d\n" % total)
            self._kept = total
        except OSError as error:
            _log.warning("the count in %s cannot be kept: %s", self._path, error)


def read_carried(path: Path) -> int:
    """What the file says; 0 if there is none, or none that makes sense."""
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1).decode("ascii").rstrip("\n")
    except FileNotFoundError:
        return 0
    except (OSError, ValueError) as error:
        _log.warning("the count in %s cannot be read: %s", path, error)
        return 0
    if text.isdecimal() and int(text) <= _LARGEST:
        return int(text)
    _log.warning("the count in %s is damaged and begins anew", path)
    return 0
