"""Numbers that increase from one start of a peer to the next, even if its clock was wrong.

Peers keep the newest record or heartbeat of a peer and refuse smaller numbers. Numbers from the wall
clock would lock out a peer whose clock was ahead for a minute, until time catches up with it. So the
number of the last start is on disk, and each start has a larger one. If the disk is lost, the clock is
the best guess; if that is too small, other peers report the number that they know (`beyond`).
"""

from __future__ import annotations

import logging
from pathlib import Path

from .atomic_write import write_atomically

log = logging.getLogger(__name__)

# Bits for the numbers of the records and heartbeats of one start: at one a second, enough for twelve
# days. Later ones overlap with the next start's numbers, which does no harm during this start.
_BITS = 20
# No clock reaches this for some 34,000 years, and all numbers stay below 2^63.
_MAX_START_NUMBER = 1 << 40


class MonotonicCounter:
    """The numbers of one start. Without a `path` nothing is stored."""

    def __init__(self, path: Path | None = None, *, clock: float = 0.0) -> None:
        """`clock` is the wall clock, in seconds since 1970."""
        self._path = path
        self._stored_number = 0
        guess = int(clock) if 0 <= clock < _MAX_START_NUMBER else 0
        self._begin(min(max(self._read() + 1, guess), _MAX_START_NUMBER))
        self.keep()

    @property
    def start_number(self) -> int:
        """The number of this start."""
        return self._start_number

    def next(self) -> int:
        """Return a number larger than all before."""
        self._last += 1
        return self._last

    def beyond(self, number: int) -> bool:
        """Continue after `number`, which another peer knows as ours. Return whether it was larger than
        ours."""
        if number <= self._last:
            return False
        self._begin(min((number >> _BITS) + 1, _MAX_START_NUMBER))
        return True

    def _begin(self, start_number: int) -> None:
        self._start_number = start_number
        self._last = start_number << _BITS

    def keep(self) -> None:
        """Store the number of this start if it has changed. Call it from one thread at a time."""
        start_number = self._start_number
        if self._path is None or self._stored_number == start_number:
            return
        try:
            write_atomically(self._path, b"%d\n" % start_number)
            self._stored_number = start_number
        except OSError as error:
            # Without the file, the clock and other peers' knowledge have to do.
            log.warning("the counter in %s cannot be written: %s", self._path, error)

    def _read(self) -> int:
        if self._path is None:
            return 0
        try:
            with self._path.open("rb") as file:
                text = file.read(32).decode("ascii").strip()
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as error:
            log.warning("the counter in %s cannot be read: %s", self._path, error)
            return 0
        if text.isdecimal() and int(text) <= _MAX_START_NUMBER:
            return int(text)
        log.warning("the counter in %s is damaged, so it is ignored", self._path)
        return 0
