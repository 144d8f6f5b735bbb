"""Command socket: JSON lines between commands and the running daemon over a unix socket, for the owner
only.

A request is one line, and so is its response. `serve_control` runs in the daemon and survives whatever a
client sends; `ask` is for commands and needs no event loop.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from ..errors import ExitCode, UserError
from ..storage.atomic_write import write_atomically
from ..util.operating_system import unix_socket

if TYPE_CHECKING:
    # libp2p brings these old stubs of trio, which checkers prefer and which do not know
    # `trio.TaskStatus`.
    from trio_typing import TaskStatus

# Maximum length of a request or a response. A status of the largest swarm with fifty events is far
# shorter.
MAX_LINE_BYTES = 1 << 20

# The path in a struct sockaddr_un has at most 108 bytes on Linux, and 104 on the BSDs and macOS,
# including the terminating zero.
MAX_SOCKET_PATH_BYTES = 100

# Time for a client to send a complete request and to read the response. A client that takes longer is
# disconnected, so that it does not hold a task.
_IDLE_SECONDS = 60.0

Handler = Callable[[dict[str, Any]], dict[str, Any]]

_log = logging.getLogger(__name__)


async def serve_control(
    path: Path,
    handlers: Mapping[str, Handler],
    *,
    task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer requests at `path` until cancelled; reports its start once `ask` can reach it.

    A request `{"command": name, …}` goes to `handlers[name]`, which must not block. The caller holds the
    lock of the data directory, so an existing socket belongs to a dead process and is replaced. A
    handler that raises is a bug: it is logged, and the client gets `{"error"}`.
    """
    with _bound(path) as server:
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(server))

        async def answer(stream: trio.SocketStream) -> None:
            await _answer(stream, handlers)

        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, answer, [listener])
            task_status.started()


def ask(path: Path, command: str, timeout: float, **arguments: Any) -> dict[str, Any]:
    """Send one request to the daemon at `path` and return its answer; wait at most `timeout` seconds.

    Raises `UserError` with `ExitCode.NOT_RUNNING` if nothing listens there or the daemon gives no valid
    answer, with `ExitCode.DATA_DIR` if this user may not use the directory, and with
    `ExitCode.UNSUPPORTED` on a system without such sockets.
    """
    request = json.dumps({"command": command, **arguments}).encode() + b"\n"
    deadline = time.monotonic() + timeout
    try:
        with unix_socket() as client:
            client.settimeout(timeout)
            client.connect(os.fspath(_address(path)))
            client.sendall(request)
            line = _read_line(client, deadline)
    except TimeoutError:
        raise _no_answer(f"the node in {path.parent} does not answer") from None
    except PermissionError as error:
        raise UserError(
            ExitCode.DATA_DIR,
            f"the data directory {path.parent} cannot be used: {error.strerror}",
            "ask as the user who runs the node, or give another directory with --data-dir",
        ) from None
    except (OSError, ValueError):
        # ValueError: the file at `path` holds something that cannot be a path.
        raise UserError(
            ExitCode.NOT_RUNNING,
            f"no node is running in {path.parent}",
            "start one with `distro-node join`, or give its directory with --data-dir",
        ) from None
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise _no_answer(f"the node in {path.parent} broke off its answer")
    if "error" in answer:
        raise UserError(
            ExitCode.NOT_RUNNING,
            f"the node in {path.parent} refused {command!r}: {answer['error']}",
            "a bootstrap peer takes fewer commands than a node that trains; restart a node of an older "
            "release, and see its log in the data directory",
        )
    return answer


def _no_answer(problem: str) -> UserError:
    return UserError(
        ExitCode.NOT_RUNNING,
        problem,
        "it may be stopping or very busy: try again, and see its log in the data directory",
    )


def _read_line(client: socket.socket, deadline: float) -> bytes:
    received = bytearray()
    while not received.endswith(b"\n") and len(received) <= MAX_LINE_BYTES:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        client.settimeout(remaining)
        part = client.recv(65536)
        if not part:
            break
        received += part
    return bytes(received)


async def _answer(stream: trio.SocketStream, handlers: Mapping[str, Handler]) -> None:
    """Answer one client line by line until it hangs up, or completes no request within
    `_IDLE_SECONDS`."""
    received = bytearray()
    with contextlib.suppress(trio.BrokenResourceError), trio.move_on_after(_IDLE_SECONDS) as idle:
        async with stream:
            while True:
                while (end := received.find(b"\n")) < 0:
                    if len(received) > MAX_LINE_BYTES:
                        error = f"a request has at most {MAX_LINE_BYTES} bytes"
                        await stream.send_all(_line({"error": error}))
                        return
                    part = await stream.receive_some(65536)
                    if not part:
                        return
                    received += part
                request = bytes(received[:end])
                del received[: end + 1]
                await stream.send_all(_line(_respond(request, handlers)))
                idle.deadline = trio.current_time() + _IDLE_SECONDS


def _line(response: dict[str, Any]) -> bytes:
    return json.dumps(response).encode() + b"\n"


def _respond(line: bytes, handlers: Mapping[str, Handler]) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        return {"error": "a request is one line of JSON"}
    command = request.get("command") if isinstance(request, dict) else None
    if not isinstance(command, str) or command not in handlers:
        return {"error": f"it knows no such command, only {', '.join(sorted(handlers))}"}
    try:
        return _without_infinities(handlers[command](request))
    except Exception as error:
        _log.exception("the handler of %r failed", command)
        return {"error": f"this is a bug in distro-node: {error!r}"}


def _without_infinities(value: Any) -> Any:
    """Replace NaN and infinities, which Python would write although they are not JSON, by null."""
    if isinstance(value, Mapping):
        return {key: _without_infinities(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_infinities(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@contextlib.contextmanager
def _bound(path: Path) -> Iterator[socket.socket]:
    """Provide a listening socket at the path that `_address(path)` returns; remove it at the end.

    If `path` is too long for a socket, the socket gets a directory of its own below the temporary
    directory, and a file at `path` names it.
    """
    with contextlib.ExitStack() as stack:
        if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
            bound = path
        else:
            # The directory has mode 0700 and an unpredictable name (mkdtemp).
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(
                    prefix="distro-", dir=_short_folder(), ignore_cleanup_errors=True
                )
            )
            bound = Path(folder) / "daemon.sock"
        server = stack.enter_context(unix_socket())
        path.unlink(missing_ok=True)
        try:
            server.bind(os.fspath(bound))
        except OSError as error:
            # The system's error does not name the file.
            raise OSError(error.errno, error.strerror, str(bound)) from None
        stack.callback(path.unlink, missing_ok=True)
        # The mode is set before listen(), so that no other user can connect before that.
        bound.chmod(0o600)
        server.listen(16)
        if bound != path:
            write_atomically(path, os.fsencode(bound))
        yield server


def _short_folder() -> str:
    for folder in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir()):
        # mkdtemp's name and the socket's own take up to 32 bytes.
        if (
            folder
            and len(os.fsencode(folder)) <= MAX_SOCKET_PATH_BYTES - 32
            and os.access(folder, os.W_OK)
        ):
            return folder
    return "/tmp"


def _address(path: Path) -> Path:
    """Return where the socket is: at `path` itself, or at the path that the file there contains."""
    if stat.S_ISREG(path.lstat().st_mode):
        with path.open("rb") as file:
            return Path(os.fsdecode(file.read(MAX_SOCKET_PATH_BYTES)))
    return path
