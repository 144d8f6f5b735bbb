"""Numbers that must grow from one start of a peer to the next, over clocks that were once wrong.

Others keep a peer's newest word about itself and refuse words with a smaller number. Numbers from
the wall clock would lock out a peer whose clock was ahead for a minute, for as long as it was ahead. So
the number of the last start is on disk, and each start has a larger one. Where the disk is lost, the
clock is the best guess; if it is too small, others show what they know (`beyond`).
"""

from __future__ import annotations

import logging
from pathlib import Path

from .atomic_write import write_atomically

log = logging.getLogger(__name__)

# So many peer records or heartbeats of one start have numbers of their own: one a second for twelve
# days; those after that run into the next start's, which does no harm while this one lasts.
_BITS = 20
# No clock says so much for some 34,000 years, and all numbers stay below 2^63.
_LARGEST = 1 << 40


class Numbering:
    """The numbers of one start. Without a `path` nothing outlasts it."""

    def __init__(self, path: Path | None = None, *, clock: float = 0.0) -> None:
        """`clock` is the wall clock, in seconds since 1970."""
        self._path = path
        self._kept = 0
        guess = int(clock) if 0 <= clock < _LARGEST else 0
        self._begin(min(max(self._stored() + 1, guess), _LARGEST))
        self.keep()

    @property
    def start_number(self) -> int:
        """The number of this start."""
        return self._start_number

    def next(self) -> int:
        """A number larger than all before."""
        self._last += 1
        return self._last

    def beyond(self, number: int) -> bool:
        """Somebody knows `number` as one of ours: go on after it. Returns whether that is news."""
        if number <= self._last:
            return False
        self._begin(min((number >> _BITS) + 1, _LARGEST))
        return True

    def _begin(self, start_number: int) -> None:
        self._start_number = start_number
        self._last = start_number << _BITS

    def keep(self) -> None:
        """Put the number of this start on the disk, unless it is there. By one thread at a time."""
        start_number = self._start_number
        if self._path is None or self._kept == start_number:
            return
        try:
            write_atomically(self._path, b"%d\n" % start_number)
            self._kept = start_number
        except OSError as error:
            # Without it the clock has to do, and what the others know.
            log.warning("the number in %s cannot be kept: %s", self._path, error)

    def _stored(self) -> int:
        if self._path is None:
            return 0
        try:
            with self._path.open("rb") as file:
                text = file.read(32).decode("ascii").strip()
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as error:
            log.warning("the number in %s cannot be read: %s", self._path, error)
            return 0
        if text.isdecimal() and int(text) <= _LARGEST:
            return int(text)
        log.warning("the number in %s is damaged and not used", self._path)
        return 0
