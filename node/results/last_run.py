"""The run in which the node of a data directory took part last, read from its history."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import SwarmId
from ...protocol.wire.swarm_id import swarm_text
from ..storage.data_dir import DataDir

# How much of the history's end is read: a line has a hundred bytes for each member, and scores at many
# tasks have some hundred kilobytes.
_TAIL_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class LastRun:
    """A swarm that this node has trained, and how far."""

    swarm: str
    name: str
    """The swarm's name; untrusted text."""
    round: int
    last_round: int | None

    @property
    def is_over(self) -> bool:
        """Whether the round was the run's last."""
        return self.last_round is not None and self.round >= self.last_round


def last_run(data: DataDir) -> LastRun | None:
    """Return the run whose last round is the newest; None if no round of any swarm is on this disk."""
    runs: list[tuple[float, LastRun]] = []
    with suppress(OSError):
        for swarm in data.known_swarms():
            with suppress(OSError, ProtocolError):
                runs += _run_of(data, swarm)
    return max(runs, key=lambda each: each[0])[1] if runs else None


def _run_of(data: DataDir, swarm: SwarmId) -> list[tuple[float, LastRun]]:
    directory = data.swarm(swarm)
    manifest = directory.read_manifest(swarm)
    reached = _last_round(directory.history)
    if reached is None:
        return []
    round_, time = reached
    run = LastRun(
        swarm=swarm_text(swarm), name=manifest.name, round=round_, last_round=manifest.last_round
    )
    return [(time, run)]


def _last_round(history: Path) -> tuple[int, float] | None:
    """Return the last round that was applied, and when, in seconds since 1970. The file's own time would
    not do: it changes with a later measurement, and with a copy of the directory."""
    with history.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        lines = file.read().splitlines()
    for line in reversed(lines):
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            # The newest line may be half written. Held-out losses, texts and scores can be those of any
            # earlier state; only the line of a round has a fingerprint.
            entry = json.loads(line)
            if "fingerprint" in entry and type(entry["round"]) is int:
                return entry["round"], float(entry["time"])
    return None
