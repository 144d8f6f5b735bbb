"""The names of members that a node remembers on disk, so that its page has them after a restart."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...storage.atomic_write import write_atomically
from ...util.regular_files import read_regular

_log = logging.getLogger(__name__)

MAX_NAMES = 1024
"""Names that are remembered: those that were learned last."""


class NamesFile:
    """A file with signed names of one swarm; it may be missing or damaged."""

    def __init__(self, path: Path, max_name: int) -> None:
        """`max_name`: bytes of a signed name."""
        self._path = path
        self._max_bytes = MAX_NAMES * (max_name * 4 // 3 + 16) + 1024
        self._saved: list[bytes] = []

    def save(self, names: Sequence[bytes]) -> None:
        """Store the last names, unless they are those that were stored before."""
        kept = [*names[-MAX_NAMES:]]
        if kept == self._saved:
            return
        texts = [base64.b64encode(sealed).decode() for sealed in kept]
        try:
            write_atomically(self._path, json.dumps({"version": 1, "names": texts}).encode())
            self._saved = kept
        except OSError as error:
            _log.warning("cannot write the members' names to %s: %s", self._path, error)

    def load(self) -> list[bytes]:
        """Return the names in the file, with their signatures unchecked: of a damaged file those before
        the damage, or none if it is not JSON or too large."""
        names: list[bytes] = []
        try:
            data = read_regular(self._path, self._max_bytes)
            if len(data) > self._max_bytes:
                raise ValueError("it is too large")
            content: Any = json.loads(data)
            for text in content["names"][:MAX_NAMES]:
                names.append(base64.b64decode(text, validate=True))
        except FileNotFoundError:
            pass
        except OSError as error:
            _log.warning("cannot read the members' names in %s: %s", self._path, error)
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            _log.warning("the list of members' names in %s is damaged: %s", self._path, error)
        return names
