"""A join and rounds between members that are far apart, with packet loss.

The round-trip time between all hosts is 0, 50 or 150 ms, with 1 % packet loss in the latter two
cases. A newcomer fetches a state from four members; then three real nodes train. Besides the limit
of the lines, the table has the throughput that loss leaves to a TCP connection in the usual model,
1.22 × packet size / (round trip × √loss) (Mathis et al., CCR 27(3), 1997); today's TCP recovers
somewhat faster than that.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from e2e.support import Place, Swarm, wait_for_round
from namespaces import Town

from . import joining
from .join import process

_MEMBERS = 4
_NODES = ("founder", "second", "third")
_UP, _DOWN = 20e6, 100e6
_PACKET_BYTES = 1448
_LOSS_PERCENT = 1
_ROUNDS = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the scenario's own options."""
    parser.add_argument("--megabytes", type=int, default=20, help="size of the state")
    parser.add_argument(
        "--distances",
        type=int,
        nargs="+",
        default=[0, 50, 150],
        help="milliseconds, there and back",
    )
    parser.add_argument("--no-rounds", action="store_true", help="the join alone")


def measure(
    members: int | None,
    *,
    megabytes: int = 20,
    distances: tuple[int, ...] = (0, 50, 150),
    no_rounds: bool = False,
) -> dict[str, Any]:
    """Run the scenario; see `benchmarks/network.py`."""
    count = members or _MEMBERS
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="distro-distance-") as name:
        folder = Path(name)
        joining.make_state(folder, megabytes, count)
        for distance in distances:
            figures[f"{distance} ms"] = found = _join(folder, count, megabytes, distance)
            print(
                f"{distance:4d} ms: {megabytes} MB from {count} members in "
                f"{found['measured_seconds']:.1f} s (limit of the lines "
                f"{found['limit_seconds']:.1f} s, by the model of TCP {found['model_seconds']:.1f} s)",
                flush=True,
            )
        for distance in () if no_rounds else distances:
            seconds = _rounds(folder / f"swarm-{distance}", distance)
            figures[f"{distance} ms"]["round_seconds"] = round(seconds, 2)
            print(
                f"{distance:4d} ms: a round of {len(_NODES)} nodes takes {seconds:.2f} s",
                flush=True,
            )
    return {"members": count, "megabytes": megabytes, "loss_percent": _LOSS_PERCENT} | (
        figures[f"{distances[-1]} ms"] | figures
    )


def _model(distance: int) -> float:
    """Return what a member sends over one connection, in bytes per second."""
    if not distance:
        return _UP / 8
    lossy = 1.22 * _PACKET_BYTES / (distance / 1000 * math.sqrt(_LOSS_PERCENT / 100))
    return min(_UP / 8, lossy)


def _join(folder: Path, count: int, megabytes: int, distance: int) -> dict[str, Any]:
    names = [f"member{number}" for number in range(count)]
    for left in ("newcomer", "newcomer-swarm"):
        shutil.rmtree(folder / left, ignore_errors=True)
    with Town([*names, "newcomer"]) as town, contextlib.ExitStack() as stack:
        _part(town, distance)
        addresses = []
        for number, name in enumerate(names):
            host = town.hosts[name]
            server = process(host, folder, "serve", host.address, str(number))
            addresses.append(stack.enter_context(server).said()["address"])
        host = town.hosts["newcomer"]
        newcomer = stack.enter_context(process(host, folder, "fetch", host.address, *addresses))
        while "finished" not in (line := newcomer.said()):
            pass
        up = max(town.line_bytes(name)[0] for name in names)
        down = town.line_bytes("newcomer")[1]
    return {
        "limit_seconds": round(8e6 * megabytes / (count * _UP), 2),
        "model_seconds": round(1e6 * megabytes / (count * _model(distance)), 2),
        "measured_seconds": round(line["finished"], 2),
        "connected_seconds": round(line["connected"], 2),
        "upload_bytes_max": up,
        "download_bytes_max": down,
    }


def _rounds(folder: Path, distance: int) -> float:
    """Return the median time from one round to the next in a swarm of real nodes, in seconds."""
    with Town([*_NODES, "bootstrap"]) as town:
        _part(town, distance)
        places = {name: Place(host.prefix, host.address) for name, host in town.hosts.items()}
        with Swarm(folder, start_members=len(_NODES), places=places) as swarm:
            swarm.create()
            nodes = swarm.start(*_NODES)
            wait_for_round(nodes, max(node.round for node in nodes) + _ROUNDS)
            times = [line["time"] for _, line in sorted(nodes[0].rounds().items())][-_ROUNDS:]
            for node in nodes:
                assert node.counted(), f"{node.name} never contributed"
    return statistics.median(after - before for before, after in itertools.pairwise(times))


def _part(town: Town, distance: int) -> None:
    for name in town.hosts:
        town.shape(name, up=_UP, down=_DOWN)
    if distance:
        town.part(round_trip=distance / 1000, loss_percent=_LOSS_PERCENT)
