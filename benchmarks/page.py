"""The cost of the page for the node that serves it: reading a long run, and keeping visitors up to date.

    python benchmarks/page.py [--rounds 20000] [--members 32] [--seconds 20] [--observe] [--json FILE]

A process of its own serves the page over a ledger of --rounds rounds, which grows by a round each
second; visitors in another process read all rounds once and then the news. A row is the CPU time of
the serving process alone over a window in which all of them get news, beside the row without a
visitor, and the longest step of its event loop meanwhile, if one took more than 10 ms. The records
are made up and unsigned: the page reads them from the node's own disk, where the node has checked
them.

With `--observe` the visitors use a complete `distro-node observe`: it follows a swarm of one member
in a process of its own, whose records are real and as frequent as the tests' toy trainer allows. Its
CPU time is the whole program's, so the row without a visitor is the cost of following.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import trio
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.crypto.identity import Identity, peer_text
from distro_node.node.control.command_socket import ask
from distro_node.node.dashboard.run_history import RunHistory
from distro_node.node.errors import UserError
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.telemetry.loop_lag import StallMeter
from distro_node.node.telemetry.status import MemberStatus, decode_status
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.messages import (
    AdmissionEntry,
    Decided,
    JoinRequest,
    Record,
    RecordId,
    UpdateEntry,
)
from distro_node.protocol.wire.swarm_id import Invite, invite_text

# Replaced, because this folder's network.py would hide the tests' folder of that name.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from dashboard.support import served
from founder import founding
from simulation.chain import Chain
from statuses import SWARM, TRAINING

VISITORS = (0, 1, 50)


class Run:
    """A ledger and a history on disk that grow by a round at a time."""

    def __init__(self, folder: Path, members: int) -> None:
        self.ledger, self.history = folder / "ledger", folder / "history.jsonl"
        self.peers = sorted(Identity.from_seed(bytes([n, 1]) * 16).peer for n in range(members))
        self._certificate = Chain(4).ledger[0].certificate
        self._round = 0

    def grow(self, rounds: int) -> None:
        """Append `rounds` rounds, each with an update of every member."""
        entries, lines = [], []
        for round_ in range(self._round, self._round + rounds):
            record = Record(
                round=round_,
                parent=RecordId(bytes(32)),
                fingerprint=round_,
                updates=() if round_ == 0 else tuple(self._update(p, round_) for p in self.peers),
                admitted=()
                if round_
                else tuple(
                    AdmissionEntry(p, JoinRequest(0, b""), bytes(64)) for p in self.peers[1:]
                ),
                departed=(),
                snapshot=None,
            )
            entry = encode(Decided(record, self._certificate))
            entries.append(len(entry).to_bytes(4, "big") + entry)
            lines.append(self._line(round_))
        self._round += rounds
        with self.ledger.open("ab") as file:
            file.write(b"".join(entries))
        with self.history.open("ab") as file:
            file.write(b"".join(lines))

    def open(self) -> RunHistory:
        """Return a reader of it."""
        return RunHistory(self.peers[0], peer_text(self.peers[0]), self.ledger, self.history)

    def _update(self, peer: Any, round_: int) -> UpdateEntry:
        update = ContentId(content_id(peer + round_.to_bytes(8, "big")))
        return UpdateEntry(peer, update, 2_900_000, 65_536, 3.0 + 1.0 / (1 + round_), bytes(64))

    def _line(self, round_: int) -> bytes:
        facts = {
            "round": round_,
            "time": 1.8e9 + 60 * round_,
            "counted": [peer_text(peer) for peer in self.peers],
            "seconds": dict.fromkeys(("compute", "encode", "transfer", "agree", "apply"), 1.0),
        }
        return json.dumps(facts).encode() + b"\n"


def serve(folder: Path, members: int, rounds: int, pipe: Connection) -> None:
    """Serve the page until told to end; answer requests on `pipe` with the cost so far."""
    run = Run(folder, members)
    run.grow(rounds)
    longest = [0.0]

    def note(seconds: float) -> None:
        longest[0] = max(longest[0], seconds)

    people = tuple(
        MemberStatus(
            peer=peer_text(p), me=n == 0, connected=True, last_message_seconds=0.5 if n else None
        )
        for n, p in enumerate(run.peers)
    )

    async def main() -> None:
        trio.lowlevel.add_instrument(StallMeter(note))
        async with served(run.open) as page, trio.open_nursery() as nursery:
            page.status = replace(TRAINING, swarm=replace(SWARM, members=people))
            pipe.send(page.port)

            async def grow() -> None:
                while True:
                    await trio.sleep(1.0)
                    await trio.to_thread.run_sync(run.grow, 1)

            nursery.start_soon(grow)
            while await trio.to_thread.run_sync(pipe.recv) == "figures":
                pipe.send((time.process_time(), longest[0]))
                longest[0] = 0.0
            nursery.cancel_scope.cancel()

    trio.run(main)


def visit(port: int, visitors: int, pipe: Connection) -> None:
    """Visit with `visitors` pages at once until told to end; answer requests with the number of
    bytes received."""
    received = [0]
    reading = [0]

    async def look() -> None:
        for path in ("rounds", "stream"):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            async with stream:
                ask = f"GET /api/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                await stream.send_all(ask.encode())
                reading[0] += path == "stream"
                while part := await stream.receive_some(1 << 16):
                    received[0] += len(part)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(visitors):
                nursery.start_soon(look)
            while await trio.to_thread.run_sync(pipe.recv) == "figures":
                pipe.send((received[0], reading[0]))
            nursery.cancel_scope.cancel()

    trio.run(main)


def found(folder: Path, pipe: Connection) -> None:
    """Run a swarm of one until told to end; send its link."""

    async def main() -> None:
        async with founding(folder) as founder:
            swarm, address = founder.manifest.swarm, founder.network.addresses[0]
            pipe.send(invite_text(Invite(swarm=swarm, bootstrap=(address,))))
            await trio.to_thread.run_sync(pipe.recv)

    trio.run(main)


def observed(seconds: float) -> list[dict[str, Any]]:
    """Return the rows of `distro-node observe`."""
    ours, theirs = multiprocessing.Pipe()
    with tempfile.TemporaryDirectory() as place:
        founder = multiprocessing.Process(target=found, args=(Path(place, "founder"), theirs))
        founder.start()
        data = DataDir(Path(place, "observer"))
        program = [sys.executable, "-m", "distro_node.node", "observe", ours.recv()]
        options = [
            "--dashboard",
            "127.0.0.1:0",
            "--metrics-addr",
            "off",
            "--no-screen",
            "--no-mdns",
        ]
        program += ["--data-dir", str(data.root), *options]
        with subprocess.Popen(program, stderr=subprocess.DEVNULL) as observer:
            try:
                port = _port_of(data)
                process = psutil.Process(observer.pid)

                def figures() -> tuple[float, float | None]:
                    times = process.cpu_times()
                    return times.user + times.system, None

                return [measured(port, figures, visitors, seconds) for visitors in VISITORS]
            finally:
                observer.terminate()
                ours.send("end")
                founder.join()


def _port_of(data: DataDir) -> int:
    """Return the port on which an observer serves its page, once it follows its swarm."""
    for _ in range(600):
        with contextlib.suppress(UserError):
            status = decode_status(ask(data.socket, "status", 10.0))
            if status.state == "observing" and status.node.dashboard is not None:
                return int(status.node.dashboard.rstrip("/").rpartition(":")[2])
        time.sleep(0.5)
    raise TimeoutError("the observer found no swarm")


def measured(
    port: int, figures: Callable[[], tuple[float, float | None]], visitors: int, seconds: float
) -> dict[str, Any]:
    """Return a row. `figures` returns the server's CPU time so far, and its longest step since the
    last call, if known."""
    ours, theirs = multiprocessing.Pipe()
    guests = multiprocessing.Process(target=visit, args=(port, visitors, theirs))
    guests.start()
    told = partial(_ask, "figures", ours)
    while told()[1] < visitors:
        time.sleep(0.5)
    time.sleep(2.0)
    figures()
    before, received, begun = figures()[0], told()[0], time.monotonic()
    time.sleep(seconds)
    (after, longest), wall = figures(), time.monotonic() - begun
    row = {
        "visitors": visitors,
        "of_a_core": (after - before) / wall,
        **({} if longest is None else {"longest_step_ms": 1e3 * longest}),
        "bytes_per_visitor_second": (told()[0] - received) / wall / max(1, visitors),
    }
    ours.send("end")
    guests.join()
    _print(row)
    return row


def _ask(word: str, pipe: Connection) -> Any:
    pipe.send(word)
    return pipe.recv()


def taken_in(folder: Path, members: int, rounds: int) -> dict[str, Any]:
    """Measure reading a run of this many rounds for the first time."""
    run = Run(folder, members)
    run.grow(rounds)
    chronicle = run.open()
    begun = time.process_time()
    while chronicle.refresh():
        pass
    read = time.process_time()
    whole = json.dumps(chronicle.whole(), separators=(",", ":"))
    return {
        "rounds": rounds,
        "members": members,
        "rows": len(chronicle.rows),
        "read_seconds": read - begun,
        "encode_seconds": time.process_time() - read,
        "bytes": len(whole),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--members", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--observe", action="store_true", help="visit `distro-node observe` alone")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.observe:
        figures: dict[str, Any] = {"observe": observed(given.seconds)}
    else:
        figures = _of_a_node(given.rounds, given.members, given.seconds)
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=1) + "\n")


def _of_a_node(rounds: int, members: int, seconds: float) -> dict[str, Any]:
    figures: dict[str, Any] = {"visits": []}
    with tempfile.TemporaryDirectory() as folder:
        figures["taken_in"] = taken_in(Path(folder), members, rounds)
    _print(figures["taken_in"])
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = multiprocessing.Pipe()
        arguments = (Path(folder), members, rounds, theirs)
        server = multiprocessing.Process(target=serve, args=arguments)
        server.start()
        port = ours.recv()
        for visitors in VISITORS:
            figures["visits"].append(
                measured(port, partial(_ask, "figures", ours), visitors, seconds)
            )
        ours.send("end")
        server.join()
    return figures


def _print(row: dict[str, Any]) -> None:
    print(" ".join(f"{name}={value:.4g}" for name, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
