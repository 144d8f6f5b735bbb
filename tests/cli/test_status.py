"""`status` and `leave` against a stand-in for the daemon's end of the socket."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from distro_node.node.control.command_socket import Handler, serve_control
from distro_node.node.errors import ExitCode

PEER = "12D3KooW" + "x" * 44
STATUS: dict[str, Any] = {
    "version": "0.1.0",
    "peer": PEER,
    "swarm": "swarm-abc",
    "name": "evil\x1b[2Jname [red]",
    "state": "training",
    "progress": None,
    "round": 1234,
    "phase": "transfer",
    "members": [
        {"peer": PEER, "me": True, "connected": False, "heard_seconds": None},
        {"peer": "a", "me": False, "connected": True, "heard_seconds": 1.5},
        {"peer": "b", "me": False, "connected": False, "heard_seconds": 99.0},
    ],
    "loss": 2.34567,
    "heldout": [1230, 2.5],
    "tokens": 1234567,
    "fingerprint": "0123456789abcdef",
    "first_round": 3,
    "last_round": 1234,
    "rounds_contributed": 1000,
    "update_bytes": 2_800_000.0,
    "bits_per_coefficient": 10.9,
    "received_bytes_per_round": 86_800_000.0,
    "sent_bytes": 10,
    "received_bytes": 20_000,
    "peers_connected": 2,
    "addresses": [f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}/p2p-circuit/p2p/{PEER}"],
    "metrics": "http://127.0.0.1:9464/metrics",
    "device": "cpu",
    "parameters": 923_392,
    "trainer_restarts": 0,
    "started": 1.0,
    "events": [
        {"time": 1.0, "round": 9, "kind": "joined", "peer": "a", "text": f"event {number}"}
        for number in range(10)
    ],
}
EARLY: dict[str, Any] = {
    **dict.fromkeys(STATUS),
    "state": "syncing",
    "progress": {"what": "fetching the model", "done": 3, "total": 8},
    "swarm": "swarm-abc",
    "peer": PEER,
    "members": [],
    "events": [],
    "loss": math.nan,
}


@pytest.fixture
def node(home: Path) -> Iterator[dict[str, Handler]]:
    """A control socket in a thread; the test fills in the handlers."""
    handlers: dict[str, Handler] = {}
    started = threading.Event()
    ending: list[Any] = []

    async def serve() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_control, home / "daemon.sock", handlers)
            token = trio.lowlevel.current_trio_token()
            ending.append(lambda: token.run_sync_soon(nursery.cancel_scope.cancel))
            started.set()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    started.wait()
    yield handlers
    ending[0]()
    thread.join()


def test_status_shows_what_the_node_does(command, node, home: Path) -> None:
    node["status"] = lambda _: STATUS
    result = command("status", "--data-dir", home)
    assert result.code == 0
    for words in (
        "evil·[2Jname [red]",
        "training",
        "1234 (transfer)",
        "3, 2 in reach",
        "2.3457",
        "2.5000 (round 1230)",
        "1,234,567",
        "2.8 MB, 10.90 bits",
        "86.8 MB a round",
        "10 B up, 20 kB down",
        "0123456789abcdef",
        # In one piece, however narrow the terminal.
        STATUS["addresses"][0],
        "event 9",
        "event 5",
    ):
        assert words in result.out
    assert "event 4" not in result.out
    assert "\x1b[2J" not in result.out


def test_status_shows_how_far_a_join_is(command, node, home: Path) -> None:
    node["status"] = lambda _: EARLY
    result = command("status", "--data-dir", home)
    assert result.code == 0
    assert "syncing: fetching the model 3/8" in result.out
    assert "nan" not in result.out
    assert "None" not in result.out


def test_status_for_programs_is_what_the_node_said(command, node, home: Path) -> None:
    node["status"] = lambda _: STATUS
    assert json.loads(command("status", "--data-dir", home, "--json").out) == STATUS


def test_leave_asks_the_node_to_leave(command, node, home: Path) -> None:
    asked = []

    def leave(request: dict[str, Any]) -> dict[str, Any]:
        asked.append(request["command"])
        return {"ok": True}

    node["leave"] = leave
    assert "leaving" in command("leave", "--data-dir", home).out
    assert json.loads(command("leave", "--data-dir", home, "--json").out) == {"ok": True}
    assert asked == ["leave", "leave"]


@pytest.mark.parametrize("name", ["status", "leave"])
def test_without_a_node_there_is_nobody_to_ask(command, home: Path, name: str) -> None:
    result = command(name, "--data-dir", home)
    result.refused_with(ExitCode.NOT_RUNNING, "no node is running", str(home))
    assert "distro-node join" in result.err


def test_an_error_of_the_node_is_told(command, node, home: Path) -> None:
    node["status"] = lambda _: STATUS
    result = command("leave", "--data-dir", home)
    result.refused_with(ExitCode.NOT_RUNNING, "refused 'leave'")
