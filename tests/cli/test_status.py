"""`status` and `leave` against a stand-in for the daemon's end of the socket."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from distro_node.node.control.command_socket import Handler, serve_control
from distro_node.node.errors import ExitCode
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.telemetry.status import Losses, encode_status
from distro_node.protocol.wire.manifest import ScheduleSpec
from distro_node.protocol.wire.swarm_id import swarm_text
from simulation.chain import Chain
from statuses import EARLY, EVENTS, SWARM, TRAINING

STATUS = replace(
    TRAINING,
    swarm=replace(SWARM, name="evil\x1b[2Jname [red]", parameters=923_392, last_round=5000),
    training=replace(
        TRAINING.training,
        round=1234,
        losses=Losses(training=2.34567, heldout=2.5, heldout_round=1230),
        received_bytes_per_round=86_800_000.0,
    ),
    events=EVENTS[:10],
)


@pytest.fixture
def node(home: Path) -> Iterator[dict[str, Handler]]:
    """Run a control socket in a thread; the test fills in the handlers."""
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
    node["status"] = lambda _: encode_status(STATUS)
    result = command("status", "--data-dir", home)
    assert result.code == 0
    for words in (
        "evil\\x1b[2Jname [red]",
        "training",
        "1,234 of 5,000, about 2 h left",
        "3, 2 connected",
        "2.3457",
        "2.5000 (round 1230)",
        "1,234,567",
        "3.06 kB, 10.56 bits",
        "86.8 MB",
        "100 kB up, 200 kB down",
        "0123456789abcdef",
        # In one piece, however narrow the terminal.
        STATUS.line.addresses[0],
        "event 9",
        "event 5",
    ):
        assert words in result.out
    assert "event 4" not in result.out
    assert "\x1b[2J" not in result.out


def test_status_shows_how_far_a_join_is(command, node, home: Path) -> None:
    node["status"] = lambda _: encode_status(EARLY)
    result = command("status", "--data-dir", home)
    assert result.code == 0
    assert "syncing: fetching the model: 3 of 8" in result.out
    assert "nan" not in result.out
    assert "None" not in result.out


def test_status_for_programs_is_what_the_node_reported(command, node, home: Path) -> None:
    node["status"] = lambda _: encode_status(STATUS)
    assert json.loads(command("status", "--data-dir", home, "--json").out) == encode_status(STATUS)


def test_a_node_of_another_version_is_distinguished(command, node, home: Path) -> None:
    node["status"] = lambda _: encode_status(STATUS) | {"mood": "good"}
    result = command("status", "--data-dir", home)
    result.refused_with(ExitCode.VERSION, "unknown key 'mood'")
    assert "good" in command("status", "--data-dir", home, "--json").out


def test_the_state_shows_what_helps(command, node, home: Path) -> None:
    node["status"] = lambda _: encode_status(replace(STATUS, state="joining"))
    assert (
        "wait until a quorum of the members is online" in command("status", "--data-dir", home).out
    )


def test_leave_asks_the_node_to_leave(command, node, home: Path) -> None:
    asked = []

    def leave(request: dict[str, Any]) -> dict[str, Any]:
        asked.append(request["command"])
        return {"ok": True}

    node["leave"] = leave
    assert "leaving" in command("leave", "--data-dir", home).out
    assert json.loads(command("leave", "--data-dir", home, "--json").out) == {"ok": True}
    assert asked == ["leave", "leave"]


def test_pause_says_how_to_go_on(command, node, home: Path) -> None:
    node["pause"] = lambda _: {"ok": True}
    assert f"distro-node resume --data-dir {home}" in command("pause", "--data-dir", home).out


@pytest.mark.parametrize("name", ["status", "leave"])
def test_without_a_node_there_is_nobody_to_ask(command, home: Path, name: str) -> None:
    result = command(name, "--data-dir", home)
    result.refused_with(ExitCode.NOT_RUNNING, "no node is running", str(home))
    assert "distro-node join" in result.err


@pytest.mark.parametrize("reached", [3, 7])
def test_without_a_node_its_last_run_is_reported(command, home: Path, reached: int) -> None:
    manifest = Chain(0, schedule=ScheduleSpec(warmup_rounds=1, total_rounds=7)).manifest
    place = DataDir(home).swarm(manifest.swarm)
    place.root.mkdir(parents=True)
    place.manifest.write_bytes(manifest.encode())
    # What is measured of an earlier state comes after the rounds, and reaches none.
    place.history.write_text(
        '{"round": 2, "time": 0.5, "fingerprint": "0"}\n'
        f'{{"round": {reached}, "time": 1.0, "fingerprint": "1"}}\n'
        '{"round": 1, "time": 2.0, "scores": {"round": 1}}\n'
        '{"round": 2, "time": 2.0, "heldout": 4.5, "parameters": "0"}\n'
        '{"round": 2, "time": 2.0, "sample": "Once"}\n{"rou'
    )
    # Another swarm's history is older, although its model was measured since.
    earlier = Chain(0, schedule=ScheduleSpec(warmup_rounds=1, total_rounds=9)).manifest
    other = DataDir(home).swarm(earlier.swarm)
    other.root.mkdir(parents=True)
    other.manifest.write_bytes(earlier.encode())
    other.history.write_text('{"round": 4, "time": 0.1, "fingerprint": "1"}\n')
    os.utime(place.history, (1.0, 1.0))
    result = command("status", "--data-dir", home)
    result.refused_with(ExitCode.NOT_RUNNING, f"took part in 'toy' up to round {reached} of 7")
    named = swarm_text(manifest.swarm)
    if reached == 7:
        assert "the run is over" in result.err
        assert f"distro-node export {named} --to my-model --data-dir {home}" in result.err
    else:
        assert "over" not in result.err
        assert f"distro-node join {named} --data-dir {home}" in result.err


def test_an_error_of_the_node_is_reported(command, node, home: Path) -> None:
    node["status"] = lambda _: encode_status(STATUS)
    result = command("leave", "--data-dir", home)
    result.refused_with(ExitCode.NOT_RUNNING, "refused 'leave'", "only status")
    # It would refuse again.
    assert "try again" not in result.err


def test_the_page_is_opened_without_the_token_and_its_link_is_printed(
    command, node, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    url = "http://127.0.0.1:9465/"
    node["dashboard"] = lambda _: {"url": url, "link": f"{url}#token=secret"}
    result = command("dashboard", "--data-dir", home)
    assert (result.code, opened) == (0, [url])
    assert f"{url}#token=secret" in result.out
    assert command("dashboard", "--data-dir", home, "--no-open").code == 0
    result = command("dashboard", "--data-dir", home, "--json")
    assert json.loads(result.out)["url"] == url
    assert opened == [url]
    # The page at a bootstrap peer allows no actions.
    node["dashboard"] = lambda _: {"url": url, "link": None}
    assert command("dashboard", "--data-dir", home, "--no-open").out == f"To look: {url}\n"


def test_a_node_without_a_page(command, node, home: Path) -> None:
    node["dashboard"] = lambda _: {"url": None, "link": None}
    result = command("dashboard", "--data-dir", home)
    assert result.code == ExitCode.NOT_RUNNING
    assert "serves no page" in result.err
    assert "--dashboard off" in result.err
