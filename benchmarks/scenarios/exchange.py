"""A round's exchange of updates between members on home lines, each a process in a namespace of its own.

From the first announcement until the last member has the updates of all others.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from namespaces import Host, Town

from .script_process import ScriptProcess

MEMBERS = 32
UPDATE_BYTES = 2_800_000
UP, DOWN = 10e6, 100e6
"""A home line, in bits per second."""
CONGESTION = "cubic"
"""TCP's congestion control: the default of home systems and untuned servers."""

_MEMBER = Path(__file__).resolve().parent / "exchange_member.py"
_POLL_SECONDS = 0.1
_NEIGHBOURS_A_SIDE = 3
_PORT = 4001


@dataclass(frozen=True)
class Line:
    """Bytes up and down a line."""

    up: int
    down: int

    def since(self, before: Line) -> Line:
        return Line(self.up - before.up, self.down - before.down)


class Relay:
    """A bootstrap peer on an unshaped line, run by its command."""

    def __init__(self, host: Host, folder: Path) -> None:
        program = ("-m", "distro_node.node", "bootstrap", "--json")
        address = ("--listen", f"/ip4/{host.address}/tcp/{_PORT}", "--data-dir", str(folder))
        log = folder.parent / f"{folder.name}.log"
        self.program = ScriptProcess(host, *program, *address, log=log)
        self.process = self.program.process
        self.address: str = self.program.read()["addresses"][0]

    def processor_seconds(self) -> float:
        """Return its CPU time."""
        times = psutil.Process(self.process.pid).cpu_times()
        return times.user + times.system

    def kill(self) -> None:
        """Kill it."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def run_exchange(
    members: int,
    *,
    relays: int,
    update_bytes: int,
    slower: float,
    limit_seconds: float,
    midway: Callable[[Sequence[Relay]], None] | None = None,
) -> dict[str, Any]:
    """Run one exchange, print its row and return its figures.

    `midway` is called when half of the bytes are transferred. `limit_seconds` is the time that home
    lines need; it and the lines are stretched by `slower`.
    """
    load = os.getloadavg()[0]
    names = [f"member{number}" for number in range(members)]
    # While a relay remains, a few connections carry the announcements; connecting all members would
    # take hundreds of handshakes before the measurement.
    meshed = relays < (1 if midway is None else 2)
    with ExitStack() as stack:
        everybody = [*names, *(f"relay{n}" for n in range(relays))]
        town = stack.enter_context(Town(everybody, CONGESTION))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=_fast_folder())))
        serving = []
        for number in range(relays):
            relay = Relay(town.hosts[f"relay{number}"], folder / f"relay{number}")
            stack.enter_context(relay.program)
            serving.append(relay)
        hosts = [town.hosts[name] for name in names]
        processes = []
        for number, host in enumerate(hosts):
            log = folder / f"member{number}.log"
            process = stack.enter_context(ScriptProcess(host, str(_MEMBER), log=log))
            plan = {
                "number": number,
                "hosts": [each.address for each in hosts],
                "neighbours": sorted(_neighbours(number, members, meshed)),
                "relays": [relay.address for relay in serving],
                "bytes": update_bytes,
                "folder": str(folder / f"store{number}"),
            }
            process.write(json.dumps(plan))
            processes.append(process)
        sizes = [process.read()["bytes"] for process in processes]
        # Only now: connecting is not measured.
        for name in names:
            town.shape(name, up=UP / slower, down=DOWN / slower)
        before = [Line(*town.line_bytes(name)) for name in names]
        busy = [relay.processor_seconds() for relay in serving]
        for process in processes:
            process.write("go")
        if midway is not None:
            everything = sum(sizes) * (members - 1) // members
            # A member's line receives only updates.
            while Line(*town.line_bytes(names[0])).since(before[0]).down < everything / 2:
                time.sleep(_POLL_SECONDS)
            midway(serving)
        told = [process.read() for process in processes]
        after = [Line(*town.line_bytes(name)) for name in names]
        spent = [
            relay.processor_seconds() - earlier
            for relay, earlier in zip(serving, busy, strict=True)
            if relay.process.poll() is None
        ]
        for process in processes:
            process.write("stop")
    lines = [late.since(early) for late, early in zip(after, before, strict=True)]
    figures = _figures(members, sizes, told, lines, spent, slower * limit_seconds)
    _show(figures)
    more = {"relays": relays, "slower": slower, "congestion": CONGESTION, "load_before": load}
    return figures | more


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of an exchange."""
    parser.add_argument(
        "--update-bytes", type=int, default=UPDATE_BYTES, metavar="N", help="of each member"
    )
    parser.add_argument(
        "--slower",
        type=float,
        default=1.0,
        metavar="TIMES",
        help="stretch lines and limit, where the machine cannot keep up with all homes at once",
    )


def _show(figures: dict[str, Any]) -> None:
    """Print an exchange's row under its head."""
    print(
        f"{'members':>8}{'limit s':>9}{'measured s':>12}{'ratio':>7}{'up MB':>8}{'down MB':>9}"
        f"{'member CPU s':>14}{'relay CPU s':>13}{'all CPU s':>11}"
    )
    relay = ", ".join(f"{seconds:.1f}" for seconds in figures["relay_processor_seconds"]) or "–"
    print(
        f"{figures['members']:>8}{figures['limit_seconds']:>9.2f}{figures['measured_seconds']:>12.2f}"
        f"{figures['measured_seconds'] / figures['limit_seconds']:>7.2f}"
        f"{figures['upload_bytes_max'] / 1e6:>8.2f}{figures['download_bytes_max'] / 1e6:>9.2f}"
        f"{figures['member_processor_seconds_max']:>14.1f}{relay:>13}"
        f"{figures['processor_seconds']:>11.1f}",
        flush=True,
    )


def _neighbours(number: int, members: int, meshed: bool) -> set[int]:
    """Return the peers to which a member is connected: all others, or three on each side."""
    if meshed:
        return set(range(members)) - {number}
    sides = range(-_NEIGHBOURS_A_SIDE, _NEIGHBOURS_A_SIDE + 1)
    return {(number + step) % members for step in sides} - {number}


def _figures(
    members: int,
    sizes: list[int],
    told: list[dict[str, Any]],
    lines: list[Line],
    relays: list[float],
    limit_seconds: float,
) -> dict[str, Any]:
    spent = [each["processor_seconds"] for each in told]
    began = min(each["began"] for each in told)
    return {
        "members": members,
        "update_bytes": max(sizes),
        "limit_seconds": limit_seconds,
        "measured_seconds": max(each["ended"] for each in told) - began,
        "seconds_by_member": sorted(each["ended"] - began for each in told),
        "upload_bytes_max": max(line.up for line in lines),
        "download_bytes_max": max(line.down for line in lines),
        "upload_bytes": sorted(line.up for line in lines),
        "payload_sent_max": max(sum(each["sent"].values()) for each in told),
        "payload_received_max": max(sum(each["received"].values()) for each in told),
        "update_bytes_received_max": max(each["received"]["update"] for each in told),
        "gossip_received_max": max(each["received"]["gossip"] for each in told),
        "member_processor_seconds": sorted(spent),
        "member_processor_seconds_max": max(spent),
        "relay_processor_seconds": relays,
        "processor_seconds": sum(spent) + sum(relays),
        "cores": os.cpu_count(),
    }


def _fast_folder() -> str | None:
    """Return a folder in memory if possible: thirty-two homes have a disk each, this machine has one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
