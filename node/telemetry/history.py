"""The history file: one line of JSON per round, and one per evaluation and sample.

It is a convenience for people and for the dashboard; nothing else depends on it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .task_scores import TaskScores, read_scores

_log = logging.getLogger(__name__)

MAX_SAMPLE_CHARACTERS = 1000
"""Length limit of a text that the model wrote: longer ones are cut when written, and ignored when
read."""

# Bytes read from the end of the history. In a swarm of a hundred members a line has ten kilobytes.
_TAIL_BYTES = 8 << 20


def write(history: Path, line: dict[str, Any]) -> None:
    """Append a line. A failure is only logged, because more important writes report a full disk."""
    try:
        _append(history, json.dumps(line).encode() + b"\n")
    except OSError as error:
        _log.warning("the history cannot be written: %s", error.strerror)


def last_rounds(history: Path, most: int) -> Iterator[tuple[int, int]]:
    """Yield the last `most` rounds of a history with their fingerprints; other lines are skipped.

    A last line that a crash cut off is removed.
    """
    try:
        with history.open("rb+") as file:
            start = file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            tail = file.read()
            complete = tail.rfind(b"\n") + 1
            if complete < len(tail):
                file.truncate(start + complete)
    except OSError:
        return
    for line in tail[:complete].splitlines()[-most:]:
        with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError, RecursionError):
            entry = json.loads(line)
            yield int(entry["round"]), int(entry["fingerprint"], 16)


def last_scores(history: Path) -> TaskScores | None:
    """Return the last scores in the final part of a history; None: there are none."""
    found = None
    with contextlib.suppress(OSError), history.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        for line in file:
            # This JSON key occurs in no other line, and a history has one line per round.
            if b'"scores"' in line:
                with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
                    found = read_scores(json.loads(line)["scores"]) or found
    return found


def _append(history: Path, line: bytes) -> None:
    """Append a line, whole or not at all. Raises `OSError` if it cannot be written."""
    with history.open("ab", buffering=0) as file:
        end = file.tell()
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            file.truncate(end)
            raise
