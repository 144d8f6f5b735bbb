"""A newcomer fetches a state from several members on home lines, also with one frozen and one lying.

Every member has 20 Mbit/s up, the newcomer 1 Gbit/s down: the members' lines are the limit. The same
state is fetched twice: from correct members, and from the same number of which one sends wrong
chunks and one is stopped when half of the state has arrived. The limit is then set by the remaining
lines.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from namespaces import Host, Town

from . import joining

_MEMBERS = 4
_UP = 20e6
_DOWN = 1e9
_PATIENCE_SECONDS = 600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the scenario's own options."""
    parser.add_argument("--megabytes", type=int, default=400, help="size of the state")


def measure(members: int | None, *, megabytes: int = 400) -> dict[str, Any]:
    """Run the scenario; see `benchmarks/network.py`."""
    count = members or _MEMBERS
    figures = {}
    with tempfile.TemporaryDirectory(prefix="distro-join-") as name:
        folder = Path(name)
        joining.make_state(folder, megabytes, count)
        for faults in (False, True) if count > 2 else (False,):
            figures["faults" if faults else "well"] = _run(folder, count, megabytes, faults=faults)
    well = figures["well"]
    return {"members": count, "megabytes": megabytes, "up_mbit": _UP / 1e6, **well} | figures


def _run(folder: Path, count: int, megabytes: int, *, faults: bool) -> dict[str, Any]:
    names = [f"member{number}" for number in range(count)]
    size = 8e6 * megabytes
    # The liar's line carries nothing useful, the frozen member's nothing after the first half.
    limit = size / (count * _UP)
    if faults:
        limit = size / 2 / ((count - 1) * _UP) + size / 2 / ((count - 2) * _UP)
    shutil.rmtree(folder / "newcomer", ignore_errors=True)
    shutil.rmtree(folder / "newcomer-swarm", ignore_errors=True)
    with Town([*names, "newcomer"]) as town, contextlib.ExitStack() as stack:
        for name in names:
            town.shape(name, up=_UP, down=_DOWN)
        town.shape("newcomer", up=_DOWN, down=_DOWN)
        servers, addresses = [], []
        for number, name in enumerate(names):
            lies = ["--lies"] if faults and number == 1 else []
            host = town.hosts[name]
            server = stack.enter_context(
                process(host, folder, "serve", host.address, str(number), *lies)
            )
            servers.append(server)
            addresses.append(server.said()["address"])
        host = town.hosts["newcomer"]
        newcomer = stack.enter_context(process(host, folder, "fetch", host.address, *addresses))
        frozen = False
        while "finished" not in (line := newcomer.said()):
            if faults and not frozen and 2 * line["done"] >= line["total"]:
                os.kill(servers[0].pid, signal.SIGSTOP)
                frozen = True
        up = [town.line_bytes(name)[0] for name in names]
        down = town.line_bytes("newcomer")[1]
    label = "one lying, one frozen halfway" if faults else "all well"
    print(
        f"{count} members at {_UP / 1e6:.0f} Mbit/s up, {megabytes} MB, {label}: "
        f"{line['finished']:.1f} s, the lines' limit {limit:.1f} s "
        f"({line['finished'] / limit:.2f} x); {down / 1e6:.0f} MB came, "
        f"{line['memory'] / 1e6:.0f} MB of memory, {line['cpu']:.1f} s of processor",
        flush=True,
    )
    return {
        "limit_seconds": round(limit, 2),
        "measured_seconds": round(line["finished"], 2),
        "upload_bytes_max": max(up),
        "download_bytes_max": down,
        "memory_bytes": line["memory"],
        "cpu_seconds": round(line["cpu"], 2),
        "rejected": line["rejected"],
    }


class Process:
    """A process of `joining.py` in a namespace."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid

    def said(self) -> dict[str, Any]:
        """Return the next line that it prints. Raises `RuntimeError` at its end."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process ended with code {self._process.wait()}")
        return json.loads(line)

    def end(self) -> None:
        """Kill it, frozen or not."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def process(host: Host, folder: Path, role: str, *arguments: str) -> Iterator[Process]:
    """Run `joining.py` on a host until the context ends."""
    command = [*host.prefix, sys.executable, "-P", joining.__file__, role, str(folder), *arguments]
    running = Process(command)
    try:
        yield running
    finally:
        running.end()
