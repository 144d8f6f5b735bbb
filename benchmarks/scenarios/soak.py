"""Six nodes with churn for some time: memory, file handles and threads of every process stay constant.

Half of the nodes stay for the whole run; the others are killed or leave, one after the other, and
return. The processes that run throughout are sampled: three nodes, their trainers, the bootstrap
peer. The slope is that of a straight line through all samples after the warm-up (libraries are
loaded late, and gossip remembers messages for two minutes).
"""

from __future__ import annotations

import argparse
import itertools
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from e2e.program import wait_for
from e2e.support import Node, Place, Swarm, check_agreement
from namespaces import Town

MEMBERS = 6
_WARM_UP_SECONDS = 150.0
_SAMPLE_SECONDS = 5.0
# A node leaves, is absent for a while, returns and trains before the next one leaves.
_AWAY_SECONDS = 15.0
_CHURN_SECONDS = 60.0
_RECOVERY_SECONDS = 300.0
_QUANTITIES = ("memory_bytes", "file_handles", "threads")


@dataclass
class Track:
    """The samples of one process: seconds since the start, and the three quantities."""

    process: psutil.Process
    samples: list[tuple[float, int, int, int]] = field(default_factory=list)

    def sample(self, seconds: float) -> None:
        """Sample its current use. Raises if it has ended: it should run throughout."""
        with self.process.oneshot():
            memory = self.process.memory_info().rss
            used = (memory, self.process.num_fds(), self.process.num_threads())
        self.samples.append((seconds, *used))

    def figures(self) -> dict[str, Any]:
        """Return each quantity's start and end after the warm-up, and its slope per hour."""
        warm = np.array([each for each in self.samples if each[0] >= _WARM_UP_SECONDS])
        part = max(1, len(warm) // 6)
        figures: dict[str, Any] = {}
        for column, name in enumerate(_QUANTITIES, 1):
            slope = np.polyfit(warm[:, 0], warm[:, column], 1)[0] if len(warm) > 1 else 0.0
            figures[name] = {
                "first": float(np.median(warm[:part, column])),
                "last": float(np.median(warm[-part:, column])),
                "an_hour": float(3600 * slope),
            }
        return figures


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this scenario alone."""
    parser.add_argument("--minutes", type=float, default=60.0, metavar="N")


def measure(members: int | None, minutes: float) -> dict[str, Any]:
    """Run the scenario."""
    names = ["founder", *(f"node-{number}" for number in range(2, (members or MEMBERS) + 1))]
    steady, restless = names[: (len(names) + 1) // 2], names[(len(names) + 1) // 2 :]
    with (
        Town([*names, "bootstrap"]) as town,
        tempfile.TemporaryDirectory() as folder,
        Swarm(
            Path(folder),
            start_members=len(names),
            snapshot_interval=10,
            lease_seconds=10.0,
            places={name: Place(host.prefix, host.address) for name, host in town.hosts.items()},
        ) as swarm,
    ):
        swarm.create()
        nodes = swarm.start(*names)
        first = nodes[0].round
        tracks = {"bootstrap": Track(psutil.Process(swarm.bootstrap.pid))}
        for name in steady:
            tracks[name] = Track(psutil.Process(swarm.node(name).program.pid))
            tracks[f"{name}'s trainer"] = Track(swarm.node(name).trainer())
        visits = _live([swarm.node(name) for name in restless], tracks, 60 * minutes)
        figures = {name: track.figures() for name, track in tracks.items()}
        _show(figures)
        # On a busy machine the last node to leave takes a while to return.
        wait_for(
            lambda: all(node.state == "training" for node in nodes),
            "everybody to train again",
            limit=_RECOVERY_SECONDS,
        )
        rounds = check_agreement(nodes, rounds=3) - first
    return {
        "members": len(names),
        "minutes": minutes,
        "limit_seconds": 60 * minutes,
        "measured_seconds": 60 * minutes,
        "upload_bytes_max": None,
        "download_bytes_max": None,
        "rounds": rounds,
        "departures": visits,
        "processes": figures,
        "samples": {name: track.samples[::6] for name, track in tracks.items()},
    }


def _live(restless: Sequence[Node], tracks: dict[str, Track], seconds: float) -> int:
    """Sample, and let one of the `restless` nodes after the other leave and return; return the
    number of departures."""
    begin = time.monotonic()
    turns = itertools.cycle(itertools.product(restless, (signal.SIGKILL, signal.SIGTERM)))
    next_departure, away, went = _CHURN_SECONDS, None, 0
    back = 0.0
    while (now := time.monotonic() - begin) < seconds:
        for track in tracks.values():
            track.sample(now)
        if away is None and now >= next_departure:
            away, how = next(turns)
            if away.running:
                away.program.signal(how)
            back, went = now + _AWAY_SECONDS, went + 1
        elif away is not None and now >= back and not away.running:
            away.start()
            away, next_departure = None, now + _CHURN_SECONDS
        time.sleep(_SAMPLE_SECONDS)
    if away is not None:
        away.program.wait()
        away.start()
    return went


def _show(figures: dict[str, dict[str, Any]]) -> None:
    print(f"{'process':<22}{'memory MB':>12}{'an hour':>10}{'handles':>12}{'an hour':>10}"
          f"{'threads':>10}{'an hour':>10}")  # fmt: skip
    for name, each in figures.items():
        memory, handles, threads = (each[quantity] for quantity in _QUANTITIES)
        print(
            f"{name:<22}{memory['last'] / 1e6:>12.1f}{memory['an_hour'] / 1e6:>+10.1f}"
            f"{handles['last']:>12.0f}{handles['an_hour']:>+10.1f}"
            f"{threads['last']:>10.0f}{threads['an_hour']:>+10.1f}",
            flush=True,
        )
