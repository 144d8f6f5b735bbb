"""Command socket: requests are answered, and no client can end the daemon."""

from __future__ import annotations

import json
import math
import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from distro_node.node.control.command_socket import (
    MAX_LINE_BYTES,
    MAX_SOCKET_PATH_BYTES,
    ask,
    serve_control,
)
from distro_node.node.errors import ExitCode, UserError


def _fail(_request: dict[str, Any]) -> dict[str, Any]:
    raise RuntimeError("a bug")


HANDLERS = {
    "echo": lambda request: request,
    "loss": lambda _: {"loss": math.nan, "list": [math.inf, 1.5]},
    "fail": _fail,
}


@asynccontextmanager
async def served(path: Path) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_control, path, HANDLERS)
        yield
        nursery.cancel_scope.cancel()


async def asked(path: Path, command: str, **arguments: Any) -> dict[str, Any]:
    return await trio.to_thread.run_sync(partial(ask, path, command, 20.0, **arguments))


async def test_a_request_is_answered(tmp_path: Path) -> None:
    path = tmp_path / "daemon.sock"
    async with served(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert await asked(path, "echo", n=1) == {"command": "echo", "n": 1}
        assert await asked(path, "loss") == {"loss": None, "list": [None, 1.5]}
    assert not path.exists()


@pytest.mark.parametrize("length", [MAX_SOCKET_PATH_BYTES, MAX_SOCKET_PATH_BYTES + 1, 900])
async def test_data_directories_may_lie_deep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    deep = tmp_path
    while (missing := length - len(os.fsencode(deep / "daemon.sock"))) > 0:
        # "/" and the name; never so long that a single character would be left over.
        deep /= "d" * (min(missing, 200) - 1 or 1)
    deep.mkdir(parents=True, exist_ok=True)
    path = deep / "daemon.sock"
    before = os.listdir(tmp_path)
    async with served(path):
        assert await asked(path, "echo") == {"command": "echo"}
    assert not path.exists()
    assert os.listdir(tmp_path) == before


async def test_a_dead_daemons_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "daemon.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(UserError) as caught:
        await asked(path, "echo")
    assert caught.value.code == ExitCode.NOT_RUNNING
    async with served(path):
        assert await asked(path, "echo") == {"command": "echo"}


async def test_what_a_client_does_wrong_is_reported_to_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "daemon.sock"
    async with served(path):
        for line, says in [
            (b"nonsense", "JSON"),
            (b"\xff\xfe", "JSON"),
            (b"[" * 100_000, "JSON"),
            (b"[]", "echo"),
            (b'{"command": ["echo"]}', "echo"),
            (b'{"command": "ehco"}', "echo"),
            (b'{"command": "fail"}', "bug"),
        ]:
            async with await trio.open_unix_socket(str(path)) as stream:
                await stream.send_all(line + b"\n")
                answer = json.loads(await stream.receive_some())
            assert says in answer["error"]
        assert await asked(path, "echo") == {"command": "echo"}


async def test_requests_may_come_in_pieces_and_many_on_one_line(tmp_path: Path) -> None:
    path = tmp_path / "daemon.sock"
    async with served(path), await trio.open_unix_socket(str(path)) as stream:
        request = b'{"command": "echo", "n": 1}\n{"command": "echo", "n": 2}\n'
        for byte in request:
            await stream.send_all(bytes([byte]))
        received = b""
        while received.count(b"\n") < 2:
            received += await stream.receive_some()
    assert [json.loads(line)["n"] for line in received.splitlines()] == [1, 2]


async def test_an_endless_request_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "daemon.sock"
    async with served(path):
        async with await trio.open_unix_socket(str(path)) as stream:
            # Far more than the socket's own buffers hold.
            with pytest.raises(trio.BrokenResourceError):
                await stream.send_all(b"x" * (10 * MAX_LINE_BYTES))
        assert await asked(path, "echo") == {"command": "echo"}


async def test_a_client_that_hangs_up_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "daemon.sock"
    async with served(path):
        for _ in range(20):
            async with await trio.open_unix_socket(str(path)) as stream:
                await stream.send_all(b'{"command": "echo"}\n{"comm')
        assert await asked(path, "echo") == {"command": "echo"}


def refused(path: Path, timeout: float = 5.0) -> UserError:
    with pytest.raises(UserError) as caught:
        ask(path, "status", timeout)
    assert caught.value.code == ExitCode.NOT_RUNNING
    return caught.value


def test_without_a_daemon_there_is_no_answer(tmp_path: Path) -> None:
    assert "no node is running" in refused(tmp_path / "daemon.sock").problem
    assert "no node is running" in refused(tmp_path / "nowhere" / "daemon.sock").problem
    stale = tmp_path / "daemon.sock"
    stale.write_text("/nowhere/daemon.sock")
    assert "no node is running" in refused(stale).problem
    stale.write_bytes(b"\xff" * 300)
    assert "no node is running" in refused(stale).problem


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"error": "no"}\n', "refused"),
        (b'{"a": 1', "broke off"),
        (b"", "broke off"),
        (b"[1]\n", "broke off"),
        (b"x" * (MAX_LINE_BYTES + 70_000), "broke off"),
    ],
)
async def test_a_broken_answer_is_no_traceback(tmp_path: Path, line: bytes, says: str) -> None:
    path = tmp_path / "daemon.sock"
    with trio.socket.socket(trio.socket.AF_UNIX) as server:
        await server.bind(str(path))
        server.listen()

        async def answer() -> None:
            client, _ = await server.accept()
            async with trio.SocketStream(client) as stream:
                await stream.receive_some()
                # The client hangs up once it has seen enough.
                try:
                    await stream.send_all(line)
                except trio.BrokenResourceError:
                    assert len(line) > MAX_LINE_BYTES

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            error = await trio.to_thread.run_sync(refused, path)
    assert says in error.problem


def test_a_daemon_that_hangs_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "daemon.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        assert "does not answer" in refused(path, timeout=0.05).problem
