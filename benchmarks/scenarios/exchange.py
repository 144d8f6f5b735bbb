"""A round's exchange of updates between members on home lines, each a process in a namespace of its own.

From the first announcement until the last member has the updates of all others.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from namespaces import Host, Town

MEMBERS = 32
UPDATE_BYTES = 2_800_000
UP, DOWN = 10e6, 100e6
"""A home line, in bits per second."""
CONGESTION = "cubic"
"""TCP's congestion control: the default of home systems and untuned servers."""

_ROOT = Path(__file__).resolve().parent.parent.parent
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
        self.process = _start(host, folder.parent / f"{folder.name}.log", *program, *address)
        self.address: str = _read(self.process, "the relay")["addresses"][0]

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
            stack.callback(_end, relay.process)
            serving.append(relay)
        hosts = [town.hosts[name] for name in names]
        processes = []
        for number, host in enumerate(hosts):
            process = _start(host, folder / f"member{number}.log", str(_MEMBER))
            stack.callback(_end, process)
            plan = {
                "number": number,
                "hosts": [each.address for each in hosts],
                "neighbours": sorted(_neighbours(number, members, meshed)),
                "relays": [relay.address for relay in serving],
                "bytes": update_bytes,
                "folder": str(folder / f"store{number}"),
            }
            _write(process, json.dumps(plan))
            processes.append(process)
        sizes = [
            _read(process, name)["bytes"] for process, name in zip(processes, names, strict=True)
        ]
        # Only now: connecting is not measured.
        for name in names:
            town.shape(name, up=UP / slower, down=DOWN / slower)
        before = [Line(*town.line_bytes(name)) for name in names]
        busy = [relay.processor_seconds() for relay in serving]
        for process in processes:
            _write(process, "go")
        if midway is not None:
            everything = sum(sizes) * (members - 1) // members
            # A member's line receives only updates.
            while Line(*town.line_bytes(names[0])).since(before[0]).down < everything / 2:
                time.sleep(_POLL_SECONDS)
            midway(serving)
        told = [_read(process, name) for process, name in zip(processes, names, strict=True)]
        after = [Line(*town.line_bytes(name)) for name in names]
        spent = [
            relay.processor_seconds() - earlier
            for relay, earlier in zip(serving, busy, strict=True)
            if relay.process.poll() is None
        ]
        for process in processes:
            _write(process, "stop")
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


def _start(host: Host, log: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with log.open("w") as errors:
        return subprocess.Popen(
            [*host.prefix, sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            cwd=_ROOT,
            # The kernel divides the CPU time between sessions: each home gets its share, regardless
            # of what else runs here.
            start_new_session=True,
        )


def _read(process: subprocess.Popen[str], name: str) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{name} ended with {process.wait()}")
    return json.loads(line)


def _write(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def _fast_folder() -> str | None:
    """Return a folder in memory if possible: thirty-two homes have a disk each, this machine has one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
