"""A node without file descriptors: strangers open more connections than it may have files."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import socket
from pathlib import Path

import pytest
import trio
from distro_node.crypto.identity import Identity
from distro_node.node.cli.failures import explain
from distro_node.node.control.command_socket import ask
from distro_node.node.doctor.computer import examine_open_files
from distro_node.node.errors import ExitCode
from distro_node.node.network import descriptors
from distro_node.node.network.descriptors import RESERVED, ConnectionRoom, make_room, room_under
from distro_node.node.network.network import open_network
from distro_node.node.util.background import keep_running
from distro_node.node.util.system_errors import Seldom
from e2e.program import Program, wait_for
from network.support import LOOPBACK
from trio.testing import MockClock

EMFILE = OSError(errno.EMFILE, "Too many open files")


def limits(pid: int) -> str:
    return Path(f"/proc/{pid}/limits").read_text()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="takes /proc")
async def test_strangers_cannot_take_all_descriptors(tmp_path: Path) -> None:
    """400 strangers send nothing, and an honest peer gets in all the same.

    The default number of handshakes would not fit.
    """
    program = Program(
        "bootstrap",
        (
            *("bootstrap", "--json", "--listen", "/ip4/127.0.0.1/tcp/0"),
            *("--data-dir", tmp_path / "data", "--metrics-addr", "off"),
        ),
        tmp_path,
        ("bash", "-c", 'ulimit -n 140; exec "$@"', "x"),
    )
    with contextlib.ExitStack() as stack:
        stack.callback(program.destroy)
        wait_for(lambda: program.stdout, "the bootstrap peer")
        (address,) = ask(tmp_path / "data" / "daemon.sock", "status", 10.0)["line"]["addresses"]
        port = int(address.split("/")[4])
        most = 0
        for _ in range(400):
            stranger = stack.enter_context(socket.socket())
            stranger.setblocking(False)
            with contextlib.suppress(OSError):
                stranger.connect(("127.0.0.1", port))
            await trio.sleep(0.002)
            most = max(most, len(os.listdir(f"/proc/{program.pid}/fd")))
        assert ask(tmp_path / "data" / "daemon.sock", "status", 30.0)["swarms"] == 0
        async with open_network(LOOPBACK, Identity.generate()) as honest:
            # Its place in the queue comes when the strangers before it are through.
            with trio.fail_after(120):
                while not honest.connected():
                    with contextlib.suppress(Exception):
                        await honest.connect(address, timeout=30.0)
        assert program.code is None
        assert most < 140 - 32
    assert "Traceback" not in program.stderr
    # That it takes fewer connections, and nothing else.
    assert sum("open" in line for line in program.stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="takes /proc")
def test_the_soft_limit_is_raised_as_far_as_needed(tmp_path: Path) -> None:
    program = Program(
        "bootstrap",
        (
            *("bootstrap", "--listen", "/ip4/127.0.0.1/tcp/0"),
            *("--data-dir", tmp_path / "data", "--metrics-addr", "off"),
        ),
        tmp_path,
        ("bash", "-c", 'ulimit -Sn 256; exec "$@"', "x"),
    )
    try:
        wait_for(lambda: program.stdout, "the bootstrap peer")
        (line,) = [each for each in limits(program.pid).splitlines() if "open files" in each]
        assert int(line.split()[3]) >= 512 + 128
    finally:
        program.destroy()


@pytest.mark.parametrize(
    ("limit", "connections", "room"),
    [
        (None, 256, ConnectionRoom(256, 128)),
        (1024, 256, ConnectionRoom(256, 128)),
        (256, 256, ConnectionRoom(120, 40)),
        (256, 100, ConnectionRoom(100, 40)),
        (RESERVED, 256, ConnectionRoom(1, 1)),
        (8, 256, ConnectionRoom(1, 1)),
    ],
)
def test_connections_fit_under_the_limit(
    limit: int | None, connections: int, room: ConnectionRoom
) -> None:
    assert room_under(limit, connections, 128) == room
    if limit is not None and limit > RESERVED + 2:
        assert room.connections + room.handshakes + RESERVED <= limit


def test_fewer_connections_are_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    # Otherwise the hard limit of this very process falls to 256 for all later tests.
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    assert make_room(256, 128) == ConnectionRoom(120, 40)
    assert "may open 256 files, so it accepts 120 connections instead of 256" in caplog.text
    assert examine_open_files().severity == "hurts"
    assert "120" in examine_open_files().what


def test_a_system_that_refuses_a_higher_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS has no named hard limit and refuses what exceeds another bound of its own."""

    def refuse(which: int, values: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert descriptors.raise_limit(1000) == 256


async def test_an_error_of_the_system_ends_a_try_and_not_the_service(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    tries = 0

    async def service() -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise EMFILE
        if tries < 4:
            raise ExceptionGroup("", [ExceptionGroup("", [OSError(errno.ENETDOWN, "down")])])

    await keep_running(service)
    assert tries == 4
    assert "service failed and is started again" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a bug"),
        OSError(errno.ENOSPC, "no space", "/data"),
        OSError(errno.EACCES, "denied", "/data"),
        ExceptionGroup("", [EMFILE, ValueError("a bug")]),
    ],
)
async def test_a_bug_and_a_full_disk_are_the_owners(error: Exception) -> None:
    async def service() -> None:
        raise error

    with pytest.raises(type(error)):
        await keep_running(service)


def test_a_shortage_is_logged_once_a_minute() -> None:
    now = 0.0
    seldom = Seldom(lambda: now)

    def record() -> logging.LogRecord:
        return logging.LogRecord("x", logging.ERROR, "", 0, "accept", (), (OSError, EMFILE, None))

    first = record()
    assert seldom.filter(first)
    assert first.exc_info is None
    assert not any(seldom.filter(record()) for _ in range(300))
    now = 61.0
    assert seldom.filter(record())


def test_a_shortage_that_ends_a_command_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(EMFILE) == ExitCode.SYSTEM_LIMIT
    assert "ulimit -n 4096" in capsys.readouterr().err
