"""Sources of `--pause-when`: servers and commands that answer, lie, stall or return nothing."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio
from distro_node.node.energy.commands import CommandFailed, ask_command
from distro_node.node.energy.pause_poller import NoReply, PausePoller
from distro_node.node.energy.threshold import KEEP_SECONDS
from distro_node.node.network import web
from distro_node.node.settings.components import PauseSettings
from energy.test_threshold import CARBON, HALF_HOURS, NOW
from trio.testing import MockClock
from web_server import Answer, WebServer, Write

# Private here: `_now`, which tests replace.


class Service(WebServer):
    """Server whose answers are set by path, whatever the query string."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        super().__init__(lambda path: self.answers[path.partition("?")[0]])

    def answer_with(self, path: str, value: object) -> None:
        body = json.dumps(value).encode()
        self.answers[path] = (200, {}, lambda write: write(body))


@pytest.fixture
def service() -> Iterator[Service]:
    server = Service()
    with server.serving():
        yield server


def asker(ask: str, **settings: Any) -> PausePoller:
    seconds = settings.pop("seconds", 30.0)
    settings = {"above": 30.0, "resume_below": 25.0} | settings
    return PausePoller(
        PauseSettings(source=ask, **settings), reply_timeout_seconds=seconds, now=lambda: NOW
    )


async def test_the_carbon_of_the_grid(service: Service) -> None:
    service.answer_with("/intensity", CARBON)
    node = asker(
        service.url + "/intensity", json_path="data.0.intensity.actual", above=200, resume_below=150
    )
    assert await node.poll()
    assert node.value == 263
    assert node.sentence == "263 is above 200 (127.0.0.1)"
    CARBON_LOW = json.loads(json.dumps(CARBON).replace("263", "120"))
    service.answer_with("/intensity", CARBON_LOW)
    assert not await node.poll()


async def test_a_tariff_of_half_hours(service: Service) -> None:
    service.answer_with("/rates", HALF_HOURS)
    node = asker(service.url + "/rates?key=secret", json_path="results.now.value_inc_vat")
    assert await node.poll()
    assert node.value == 31.4
    # The URL may hold a key: the screen and the log show only the host.
    assert "secret" not in node.sentence
    assert service.asked == ["/rates?key=secret"]


def endless(write: Write) -> None:
    while True:
        write(b"1" * 65536)


def drip(write: Write) -> None:
    for _ in range(3000):
        write(b" ")
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("status", "headers", "write", "why"),
    [
        (200, {}, endless, "more than"),
        (200, {}, drip, "longer than"),
        (200, {"content-length": "100"}, lambda write: write(b"5"), "peer closed"),
        (200, {}, lambda write: write(b'{"a": NaN}'), "not a finite number"),
        (200, {}, lambda write: write(b"[" * 200_000), "not JSON"),
        (200, {}, lambda write: write(b'{"a": 1' + b"0" * 400 + b"}"), "too large"),
        (404, {}, lambda write: write(b'{"a": 5}'), "404"),
        (302, {"location": "file:///etc/passwd"}, lambda write: None, "other than HTTP"),
        (302, {"location": "/"}, lambda write: None, "too many times"),
        (302, {}, lambda write: None, "302"),
    ],
)
async def test_a_server_that_lies_ends_as_no_answer(
    service: Service,
    status: int,
    headers: dict[str, str],
    write: Callable[[Write], object],
    why: str,
) -> None:
    service.answers["/"] = (status, headers, write)
    seconds = 1.0 if write is drip else 60.0
    with pytest.raises(NoReply, match=why):
        await asker(service.url + "/", json_path="a", seconds=seconds).ask()


async def test_nobody_there() -> None:
    with pytest.raises(NoReply):
        await asker("http://127.0.0.1:1/", json_path="a").ask()


async def test_a_redirect_leads_into_a_private_network_only_from_there(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.answer_with("/router", {"a": 5})
    service.answers["/"] = (302, {"location": "/router"}, lambda write: None)
    assert await asker(service.url + "/", json_path="a").ask() == 5
    # As if the owner's URL led to the public internet, and its redirect back home.
    public = iter([True])
    real = web.is_public
    monkeypatch.setattr(web, "is_public", lambda a: next(public, False) or real(a))
    service.asked.clear()
    with pytest.raises(NoReply, match="not an address of the public internet"):
        await asker(service.url + "/", json_path="a").ask()
    assert service.asked == ["/"]


# Commands


async def test_a_commands_number_and_its_text() -> None:
    assert await asker("echo 31.5").ask() == 31.5
    assert await asker("echo '{\"a\": [7]}'", json_path="a.0").ask() == 7
    for code, value in ((0, 1.0), (1, 0.0)):
        assert await asker(f"exit {code}", above=None, resume_below=None).ask() == value
    node = asker("exit 0", above=None, resume_below=None)
    assert await node.poll()
    assert node.value is None
    assert node.sentence == "the command of --pause-when requests a pause"


@pytest.mark.parametrize(
    ("command", "settings", "why"),
    [
        ("sleep 600", {"seconds": 0.5}, "longer than"),
        # The shell ends, and its child keeps the pipe open.
        ("sleep 600 & exit 0", {"seconds": 0.5}, "longer than"),
        ("trap '' TERM INT HUP; while :; do :; done", {"seconds": 0.5}, "longer than"),
        ("cat /dev/zero", {}, "more than"),
        ("printf '\\033[2J\\033]0;mine\\007 5'", {}, "not a number"),
        ("echo 5; exit 3", {}, "ended with exit code 3"),
        ("exit 2", {"above": None, "resume_below": None}, "ended with exit code 2"),
        ("no-such-command-here", {"above": None, "resume_below": None}, "ended with exit code 127"),
        ("true", {}, "not a number"),
        ("kill -9 $$", {}, "ended with"),
    ],
)
async def test_a_command_without_output(command: str, settings: dict[str, Any], why: str) -> None:
    with pytest.raises(NoReply, match=why) as caught:
        await asker(command, **settings).ask()
    assert len(str(caught.value)) <= 512


async def test_what_a_command_started_ends_with_it(tmp_path: Path) -> None:
    said = tmp_path / "pid"
    with pytest.raises(CommandFailed):
        await ask_command(f"sleep 600 & echo $! > {said}; wait", 2.0)
    with trio.fail_after(60):
        await trio.to_thread.run_sync(psutil.wait_procs, still_there(int(said.read_text())))


def still_there(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        # Its parent may not have reaped it yet.
        return [process] if process.status() != psutil.STATUS_ZOMBIE else []
    return []


async def test_a_command_that_is_not_there() -> None:
    with pytest.raises(CommandFailed):
        await ask_command(["/no/such/program"], 5.0)


# Consequences


class Said(PausePoller):
    """Asker with scripted answers."""

    word: float | None = None

    async def ask(self) -> float:
        if self.word is None:
            raise NoReply("the line is \x1b[31mdead")
        return self.word


async def test_silence_keeps_the_last_answer_for_a_while_and_is_reported_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    node = Said(PauseSettings(source="x", above=30.0, resume_below=25.0))
    # Never an answer: the node works.
    assert not await node.poll()
    node.word = 40.0
    assert await node.poll()
    node.word = None
    paused = []
    for _ in range(20):
        await trio.sleep(300)
        paused.append(await node.poll())
    assert paused == [True] * int(KEEP_SECONDS / 300) + [False] * (20 - int(KEEP_SECONDS / 300))
    node.word = 20.0
    assert not await node.poll()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 5
    assert ["it answers again" in line for line in said] == [False, True, False, False, True]
    assert "no answer for too long" in said[3]


def test_now_has_a_zone() -> None:
    assert PausePoller(PauseSettings(source="x"))._now().tzinfo is UTC
    assert isinstance(NOW, datetime)
