"""What strangers can cost a node: bytes, disk, memory, handles, CPU, and whether honest peers are
served and rounds continue meanwhile.

    python benchmarks/strangers.py [--only ROW ...] [--seconds 6] [--json FILE]

A whole node (with a toy trainer) runs in a process of its own and trains alone. Each attack on it
runs with one hostile peer and with fifty, all of them in one other process, while an honest peer
requests an echo twenty times a second. A row is measured from the moment when all attackers are
connected, for the same time in each row, which also has the number connected. `nothing` is
the same without an attack. Last, two nodes that really train do so undisturbed, and then with all
attacks at once on one of them. Everything runs on loopback, where no line limits the attackers.
docs/threats.md has the table.
"""

# ruff: noqa: E402  (the tests' package is found only after the path is set)
from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import trio
from distro_node.crypto.identity import Identity
from distro_node.node.network.network import open_network

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
# This folder's `network.py` would be taken for the tests' package.
sys.path[:] = [each for each in sys.path if Path(each).resolve() != Path(__file__).resolve().parent]

from e2e.support import Node, Swarm
from network import attacks, victim
from network.attacks import ATTACKS
from network.support import ECHO, LOOPBACK
from network.victim import Figures, Target

CROWD = 50
# The row beside the attacks: whether two nodes that train continue under all of them.
ROUNDS = "rounds"
NOTHING = "nothing"
# The time until all attackers are connected. Later ones count as not connected in the row.
_PATIENCE_SECONDS = 60.0
_AFTER_SECONDS = 5.0


@dataclass(frozen=True)
class Cost:
    """What an attack cost the node. Memory and handles are in addition to those at rest; the rest is
    what the node used in the window, including the honest peer and its own rounds: `nothing` has
    those alone."""

    attack: str
    peers: int
    connected: int
    """Hostile peers that were ready when the window began."""
    seconds: float
    """Length of the window."""
    memory_mib: float
    """The peak, from before the first was connected to the end."""
    left_mib: float
    """What remained five seconds after the end."""
    handles: int
    processor: float
    """Of one core."""
    received_kib: float
    """Per second, including protocol overhead."""
    sent_kib: float
    """Likewise."""
    received_kib_each: float
    """Per second and hostile peer."""
    sent_kib_each: float
    grown_kib: float
    """Growth of the data directory."""
    disk_mib: float
    """What was written to the disk, including repeated writes of the same files."""
    rounds_per_minute: float
    """Rounds that the node finished, alone."""
    echo_median_ms: float
    echo_longest_ms: float
    echoes_lost: int


@dataclass(frozen=True)
class Rounds:
    """Number of rounds that two nodes finished while all attacks ran against one of them."""

    peers: int
    connected: int
    seconds: float
    calm_per_minute: float
    attacked_per_minute: float


def ask_honestly(wire: Any) -> None:
    """Act as an honest peer of one node after the other, as the main function of a process: request
    echoes, and return how long each took in seconds; a negative number if none came."""
    while (order := wire.recv()) is not None:
        address, seconds = order
        wire.send(trio.run(_echoes, address, seconds, wire))


async def _echoes(address: str, seconds: float, wire: Any) -> list[float]:
    waits: list[float] = []
    async with open_network(LOOPBACK, Identity.generate()) as network:
        await network.connect(address, timeout=60)
        wire.send("ready")
        await trio.to_thread.run_sync(wire.recv)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            begun = time.monotonic()
            try:
                peer = await network.connect(address, timeout=5)
                await network.request(peer, ECHO, b"x", max_response=1, timeout=5)
                waits.append(time.monotonic() - begun)
            except Exception:
                waits.append(-1.0)
            await trio.sleep(0.05)
    return waits


class Crew:
    """The processes that serve all rows: the attackers', and the honest peer's."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self.attackers = self._start(attacks.run)
        self.honest = self._start(ask_honestly)
        self._next: Fresh | None = None

    def prepare(self) -> None:
        """Start the next row's node in advance, to avoid waiting for it then."""
        if self._next is None:
            self._next = Fresh(self._context)

    @contextmanager
    def node(self) -> Iterator[tuple[Any, psutil.Process, Target]]:
        """Yield a fresh node: the pipe to it, its process, and its address."""
        self.prepare()
        fresh, self._next = self._next, None
        assert fresh is not None  # it was prepared
        try:
            yield fresh.wire, psutil.Process(fresh.process.pid), fresh.wire.recv()
        finally:
            fresh.end()

    def dismiss(self) -> None:
        """End them."""
        for wire in (self.attackers, self.honest):
            wire.send(None)
        if self._next is not None:
            self._next.end()

    def _start(self, main: Any) -> Any:
        here, there = self._context.Pipe()
        self._context.Process(target=main, args=(there,), daemon=True).start()
        there.close()
        return here


class Fresh:
    """A node that starts, with an empty folder."""

    def __init__(self, context: Any) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.wire, there = context.Pipe()
        self.process = context.Process(
            target=victim.run, args=(Path(self._folder.name), there), daemon=True
        )
        self.process.start()
        there.close()

    def end(self) -> None:
        """Kill it, and remove what it wrote."""
        self.process.kill()
        self.process.join()
        self._folder.cleanup()


def measure(crew: Crew, name: str, peers: int, seconds: float) -> Cost:
    """Run one attack against a node of its own."""
    with crew.node() as (wire, process, target):
        crew.honest.send((target.address, seconds))
        crew.honest.recv()
        most = Most(process)
        crew.attackers.send(([name], target, peers, seconds, _PATIENCE_SECONDS))
        while not crew.attackers.poll(0.05):
            most.sample()
        connected = crew.attackers.recv()
        before, used, written = ask(wire), sum(process.cpu_times()[:2]), process.io_counters()
        crew.honest.send("go")
        crew.attackers.send("go")
        while not crew.attackers.poll(0.05):
            most.sample()
        crew.attackers.recv()
        spent, wrote = sum(process.cpu_times()[:2]) - used, process.io_counters()
        after = ask(wire)
        waits = crew.honest.recv()
        crew.prepare()
        time.sleep(_AFTER_SECONDS)
        left = most.memory_now()
    took = after.at - before.at
    answered = sorted(wait for wait in waits if wait >= 0.0) or [float("inf")]
    received, sent = ((getattr(after, way) - getattr(before, way)) / took / 2**10 for way in WAYS)
    each = max(1, connected)
    return Cost(
        attack=name,
        peers=peers,
        connected=connected,
        seconds=seconds,
        memory_mib=round(most.memory / 2**20, 1),
        left_mib=round(left / 2**20, 1),
        handles=most.handles,
        processor=round(spent / took, 2),
        received_kib=round(received, 1),
        sent_kib=round(sent, 1),
        received_kib_each=round(received / each, 1),
        sent_kib_each=round(sent / each, 1),
        grown_kib=round((after.disk - before.disk) / 2**10, 1),
        disk_mib=round((wrote.write_bytes - written.write_bytes) / 2**20, 1),
        rounds_per_minute=round(60.0 * (after.round - before.round) / took, 1),
        echo_median_ms=round(1e3 * answered[len(answered) // 2], 1),
        echo_longest_ms=round(1e3 * answered[-1], 1),
        echoes_lost=sum(wait < 0.0 for wait in waits),
    )


WAYS = ("received", "sent")


def ask(wire: Any) -> Figures:
    """Return the node's current figures."""
    wire.send("figures")
    return wire.recv()


class Most:
    """The peak memory and handles of a process, in addition to those at the beginning."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._memory, self._handles = process.memory_info().rss, process.num_fds()
        self.memory = self.handles = 0

    def sample(self) -> None:
        """Read its current use."""
        self.memory = max(self.memory, self.memory_now())
        self.handles = max(self.handles, self._process.num_fds() - self._handles)

    def memory_now(self) -> int:
        """Return the memory in bytes."""
        return self._process.memory_info().rss - self._memory


def measure_rounds(crew: Crew, peers: int, seconds: float) -> Rounds:
    """Let two nodes train undisturbed and then with all attacks at once on the founder."""
    with tempfile.TemporaryDirectory() as folder, Swarm(Path(folder) / "swarm") as swarm:
        swarm.create()
        nodes = swarm.start("founder", "other")
        calm = rounds_in(nodes, seconds)
        status = nodes[0].told()
        assert status.line is not None
        assert status.node.metrics is not None
        page = int(status.node.metrics.rpartition(":")[2].partition("/")[0])
        target = Target(status.line.addresses[0], page, swarm.manifest.swarm)
        # One hostile peer that made the attacks one after the other would be too gentle: it sends
        # the worst gossip.
        names = [name for name in ATTACKS if name != NOTHING] if peers > 1 else ["prunes"]
        crew.attackers.send((names, target, peers, seconds, _PATIENCE_SECONDS))
        connected = crew.attackers.recv()
        crew.attackers.send("go")
        attacked = rounds_in(nodes, seconds)
        crew.attackers.recv()
    return Rounds(peers, connected, seconds, calm, attacked)


def rounds_in(nodes: list[Node], seconds: float) -> float:
    """Return the rounds per minute that all of the nodes applied."""
    begun, before = time.monotonic(), min(node.round for node in nodes)
    time.sleep(seconds)
    after, took = min(node.round for node in nodes), time.monotonic() - begun
    return round(60.0 * (after - before) / took, 1)


COLUMNS = {
    "attack": "attack",
    "peers": "peers",
    "connected": "there",
    "memory_mib": "MiB",
    "left_mib": "left",
    "handles": "handles",
    "processor": "core",
    "received_kib_each": "KiB/s in",
    "sent_kib_each": "out",
    "grown_kib": "grown KiB",
    "disk_mib": "disk MiB",
    "rounds_per_minute": "rounds",
    "echo_median_ms": "echo ms",
    "echo_longest_ms": "longest",
    "echoes_lost": "lost",
}


def line(values: dict[str, Any]) -> str:
    """Return a row as it is printed."""
    return "".join(
        f"{values[name]:<15}" if name == "attack" else f"{values[name]:>{len(title) + 3}}"
        for name, title in COLUMNS.items()
    )


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description="What strangers can cost a node.")
    rows = [*ATTACKS, ROUNDS]
    parser.add_argument("--only", nargs="*", choices=rows, metavar="ROW", help=", ".join(rows))
    parser.add_argument("--seconds", type=float, default=6.0, help="of the window of each row")
    parser.add_argument("--peers", type=int, nargs="*", default=[1, CROWD])
    parser.add_argument("--round-seconds", type=float, default=20.0, help="of the row `rounds`")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    names = options.only or rows
    result: dict[str, Any] = {"costs": {}, "rounds": {}}
    result |= {"cores": os.cpu_count(), "load": os.getloadavg()}
    print(line(COLUMNS))
    crew = Crew()
    for name in names:
        for peers in options.peers if name != NOTHING else [1]:
            seconds = options.round_seconds if name == ROUNDS else options.seconds
            part = result["rounds"] if name == ROUNDS else result["costs"].setdefault(name, {})
            try:
                if name == ROUNDS:
                    found = measure_rounds(crew, peers, seconds)
                else:
                    found = measure(crew, name, peers, seconds)
            except (EOFError, BrokenPipeError, ConnectionResetError, psutil.NoSuchProcess) as error:
                sys.exit(f"{name}, {peers}: a process ended that was to stay: {error!r}")
            part[str(peers)] = asdict(found)
            print(found if isinstance(found, Rounds) else line(asdict(found)), flush=True)
            if options.json:
                options.json.write_text(json.dumps(result, indent=1) + "\n")
    crew.dismiss()


if __name__ == "__main__":
    main()
