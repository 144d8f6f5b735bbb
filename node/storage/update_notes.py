"""Notes of the updates in the blob store, with the rounds for which they were announced.

The ledger names only the updates that counted. Without notes, nothing would lead a restarted node to
the others, and each start would leave some on the disk for ever.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from ...crypto.hashing import ContentId, content_from_text, content_text
from ...protocol.wire.manifest import SwarmId
from ...protocol.wire.swarm_id import swarm_text
from .atomic_write import temporary_path

_log = logging.getLogger(__name__)

# More than the notes of all updates of a hundred rounds of the largest swarms.
_MAX_BYTES = 16 << 20
# Digits of the greatest round that is read.
_MAX_DIGITS = 18
# Lines without use that may be in the file.
_SPARE_LINES = 256


class UpdateNotes:
    """The notes of one swarm in the folder of a blob store; one process at a time may use them.

    They are a line each, written without waiting for the disk: a power cut may lose those of the last
    seconds. A line that cannot be written is noted in memory alone.
    """

    def __init__(self, root: Path, swarm: SwarmId) -> None:
        self._path = root / f".updates-{swarm_text(swarm)}"
        self._lines = 0
        self.noted: set[tuple[int, ContentId]] = set()
        """The notes, as (round, update): those of earlier processes, too."""
        try:
            self._read()
        except OSError as error:
            _log.warning("the notes of updates in %s cannot be read: %s", self._path, error)

    def _read(self) -> None:
        try:
            with self._path.open("rb") as file:
                lines = file.read(_MAX_BYTES).split(b"\n")
        except FileNotFoundError:
            return
        self._lines = len(lines)
        for line in lines:
            # A process that was killed, or a full disk, has left half a line.
            with contextlib.suppress(ValueError):
                number, update = line.decode("ascii").split()
                if number.isdecimal() and len(number) <= _MAX_DIGITS:
                    self.noted.add((int(number), content_from_text(update)))

    def note(self, round: int, update: ContentId) -> None:
        """Note that an update of `round` is in the store."""
        if (round, update) in self.noted:
            return
        self.noted.add((round, update))
        self._lines += 1
        try:
            with self._path.open("ab") as file:
                # On a new line, because the last one may be half a line.
                file.write(b"\n" + _line(round, update))
        except OSError as error:
            _log.debug("an update could not be noted in %s: %s", self._path, error)

    def forget(self, round: int) -> None:
        """Forget the updates of rounds up to `round`: what need not stay of them is removed."""
        self.noted = {each for each in self.noted if each[0] > round}
        if self._lines <= 2 * len(self.noted) + _SPARE_LINES:
            return
        temporary = temporary_path(self._path)
        try:
            temporary.write_bytes(b"\n".join(_line(*each) for each in sorted(self.noted)))
            temporary.replace(self._path)
        except OSError as error:
            _log.debug("the notes in %s could not be shortened: %s", self._path, error)
        # Otherwise tried again after as many more.
        self._lines = len(self.noted)


def _line(round: int, update: ContentId) -> bytes:
    return f"{round} {content_text(update)}".encode()
