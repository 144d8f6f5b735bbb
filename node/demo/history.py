"""Observation of a node from outside: its history file, read as it grows, and its status, polled.

Both are available to any user: `history.jsonl` in the data directory, and the output of `distro-node
status`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..control.command_socket import ask
from ..errors import UserError
from ..telemetry.status import Status, decode_status

_POLL_SECONDS = 1.0
# How long an answer may take: nodes may share two cores with their trainers.
_REPLY_TIMEOUT_SECONDS = 5.0

RoundFacts = dict[str, Any]


class History:
    """The contents of a history file, by round; a round's later lines extend and correct earlier
    ones."""

    def __init__(self, path: Path | None = None) -> None:
        self.rounds: dict[int, RoundFacts] = {}
        self._path = path
        self._offset = 0
        self._rest = b""

    def update(self) -> None:
        """Read what has been written since the last call; the file need not exist yet."""
        if self._path is None or not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.add(lines)

    def add(self, lines: Sequence[bytes]) -> None:
        """Add lines. A line that was cut short because its node was killed is skipped."""
        for line in lines:
            try:
                facts = json.loads(line)
                round_ = facts["round"]
            except (ValueError, TypeError, KeyError):
                continue
            self.rounds.setdefault(round_, {}).update(facts)

    @property
    def last_round(self) -> int:
        """The last round that the node has applied; 0 before the first."""
        return max((r for r, facts in self.rounds.items() if "fingerprint" in facts), default=0)

    def values(self, key: str) -> dict[int, Any]:
        """Return the known values of `key`, by round, in the order of rounds."""
        found = {r: self.rounds[r].get(key) for r in sorted(self.rounds)}
        return {r: value for r, value in found.items() if value is not None}


class StatusPoller:
    """Polls a node's status every second, in a thread."""

    def __init__(self, socket: Path) -> None:
        self.latest: Status | None = None
        """The last answer."""
        self._socket = socket
        self._stop = threading.Event()
        # A daemon thread: a missing answer must not delay the end of the demo.
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop polling."""
        self._stop.set()

    def _poll(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            try:
                self.latest = decode_status(ask(self._socket, "status", _REPLY_TIMEOUT_SECONDS))
            except UserError:
                # The node is starting, is busy or has ended; the director sees which from its process.
                continue
