"""How long the trainer waits in a round, with `overlap` and without, on faster and slower lines.

A few real nodes train over home lines whose rate is chosen so that transferring a round's updates
takes either less time than computing them or more. A round without overlap takes the sum of both;
with it, the longer of the two, and on a fast enough line the trainer does not wait. Both swarms are
created alike and run one after the other, on the same lines.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from e2e.program import wait_for
from e2e.support import Node, Place, Swarm, check_agreement
from namespaces import Town

_MEMBERS = 2
_ROUNDS = 12
# Megabits per second up, ten times as many down: the first line is fast enough, the second is not.
_RATES = (4.0, 0.2)
# Rounds until deadlines and connections have adapted to another line.
_SETTLING_ROUNDS = 4
# 0.4 million parameters, with every eighth coefficient sent: an update of some 30 kB, for which a
# slow line takes about the time that one CPU core takes to compute it.
_HIDDEN, _TOP_K, _SEQUENCES = 256, 512, 128
_LEASE_SECONDS = 30.0
_PATIENCE_SECONDS = 600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the scenario's own options."""
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="measured at each rate")
    parser.add_argument(
        "--sequences", type=int, default=_SEQUENCES, help="in a round, of all members"
    )
    parser.add_argument(
        "--up", type=float, nargs="+", default=list(_RATES), help="rates of the lines, Mbit/s up"
    )


def measure(
    members: int | None, *, rounds: int, sequences: int, up: Sequence[float]
) -> dict[str, Any]:
    """Run the scenario; see `benchmarks/network.py`."""
    count = members or _MEMBERS
    figures: dict[str, dict[str, Any]] = {f"{rate:g} Mbit/s": {} for rate in up}
    for overlap in (False, True):
        for rate, found in _run(count, rounds, sequences, up, overlap).items():
            figures[rate]["overlap" if overlap else "in turn"] = found
    print(
        f"{'line up':>12}{'':10}{'compute s':>11}{'line s':>8}{'limit s':>9}{'round s':>9}"
        f"{'trainer waits':>15}"
    )
    for rate, ways in figures.items():
        for way, found in ways.items():
            print(
                f"{rate:>12}  {way:8}{found['compute_seconds']:11.2f}{found['line_seconds']:8.2f}"
                f"{found['limit_seconds']:9.2f}{found['measured_seconds']:9.2f}"
                f"{found['trainer_waits']:15.1%}"
            )
    return {
        "members": count,
        "rounds": rounds,
        **next(iter(figures.values()))["overlap"],
        **figures,
    }


def _run(
    count: int, rounds: int, sequences: int, up: Sequence[float], overlap: bool
) -> dict[str, dict[str, Any]]:
    """Return the figures of one swarm, by rate."""
    names = ["founder", *(f"node-{number}" for number in range(2, count + 1))]
    found = {}
    with (
        Town([*names, "bootstrap"]) as town,
        tempfile.TemporaryDirectory(prefix="distro-overlap-") as folder,
        Swarm(
            Path(folder) / "swarm",
            start_members=count,
            snapshot_interval=1000,
            hidden=_HIDDEN,
            lease_seconds=_LEASE_SECONDS,
            top_k=_TOP_K,
            sequences=sequences,
            overlap=overlap,
            places={name: Place(host.prefix, host.address) for name, host in town.hosts.items()},
        ) as swarm,
    ):
        swarm.create()
        for name in names:
            # Measuring the loss is work too, but not a round's.
            swarm.node(name).start("--evaluate-every", "100000")
        nodes = swarm.start(*names)
        for rate in up:
            for name in names:
                town.shape(name, up=1e6 * rate, down=1e7 * rate)
            found[f"{rate:g} Mbit/s"] = _rounds(town, nodes, 1e6 * rate, rounds, overlap)
        check_agreement(nodes)
    return found


def _rounds(
    town: Town, nodes: Sequence[Node], rate: float, rounds: int, overlap: bool
) -> dict[str, Any]:
    first = max(node.round for node in nodes) + _SETTLING_ROUNDS
    _reach(nodes, first)
    before = {node.name: town.line_bytes(node.name) for node in nodes}
    _reach(nodes, first + rounds)
    moved = [
        [
            after - then
            for after, then in zip(town.line_bytes(node.name), before[node.name], strict=True)
        ]
        for node in nodes
    ]
    waits, seconds, compute = [], [], []
    for node in nodes:
        lines = node.rounds()
        measured = [lines[number] for number in range(first + 1, first + rounds + 1)]
        whole = measured[-1]["time"] - lines[first]["time"]
        waits.append(sum(line["idle_seconds"] for line in measured) / whole)
        seconds.append(whole / rounds)
        compute.append(statistics.median(_computing(line) for line in measured))
    upload, download = (max(each[way] for each in moved) / rounds for way in (0, 1))
    line = max(8 * upload / rate, 8 * download / (10 * rate))
    return {
        "trainer_waits": statistics.mean(waits),
        "trainer_waits_each": waits,
        "compute_seconds": max(compute),
        "line_seconds": line,
        "limit_seconds": max(max(compute), line) if overlap else max(compute) + line,
        "measured_seconds": statistics.mean(seconds),
        "upload_bytes_max": upload,
        "download_bytes_max": download,
    }


def _computing(line: dict[str, Any]) -> float:
    """Return the trainer's working time in a round: the gradient, encoding, applying."""
    return sum(line["seconds"][phase] or 0.0 for phase in ("compute", "encode", "apply"))


def _reach(nodes: Sequence[Node], round: int) -> None:
    wait_for(
        lambda: all(node.round >= round for node in nodes),
        f"round {round}",
        limit=_PATIENCE_SECONDS,
    )
