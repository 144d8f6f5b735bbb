"""Processes that have loaded libraries and are copied for each trainer, and most nodes, of a test.

Loading torch and transformers takes most of a trainer's processor time in tests, and loading libp2p
much of a node's; there are hundreds of both. The copy is made by `fork`, before any thread exists; it
does and ends as any trainer or node. `python copies.py KIND LISTENER` serves the listening socket
with this descriptor until its standard input closes.

Trainers are handed over by `sitecustomize.py`; `start_node` starts a node.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

KINDS = {"trainers": "PRELOADED_TRAINERS", "nodes": "PRELOADED_NODES"}
"""The variable that holds the path of a kind's socket."""
_ORDER_BYTES = 1 << 18


@contextlib.contextmanager
def preloaded(folder: Path) -> Iterator[None]:
    """Have trainers that this process and its children start, and nodes of `start_node`, continued by
    copies; the libraries are loaded when the first one asks. `folder` holds the sockets."""
    from distro_node.node.training.environment import environment

    life, ours = os.pipe()
    started: list[subprocess.Popen[bytes]] = []

    def start(kind: str, listener: socket.socket) -> None:
        if listener in select.select([listener, life], [], [])[0]:
            command = [sys.executable, "-P", __file__, kind, str(listener.fileno())]
            settings = environment(1, str(folder)) if kind == "trainers" else dict(os.environ)
            started.append(
                subprocess.Popen(command, stdin=life, pass_fds=(listener.fileno(),), env=settings)
            )

    paths = os.pathsep.join(
        filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH")))
    )
    before = {name: os.environ.get(name) for name in (*KINDS.values(), "PYTHONPATH")}
    threads, listeners = [], []
    for kind, variable in KINDS.items():
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(folder / kind))
        listener.listen(64)
        listeners.append(listener)
        threads.append(threading.Thread(target=start, args=(kind, listener), daemon=True))
        os.environ[variable] = str(folder / kind)
    os.environ["PYTHONPATH"] = paths
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        os.close(ours)
        for thread in threads:
            thread.join()
        for process in started:
            process.terminate()
            process.wait()
        os.close(life)
        for listener in listeners:
            listener.close()


@contextlib.contextmanager
def cold() -> Iterator[None]:
    """Have trainers and nodes load their libraries meanwhile, each in a process of its own."""
    paths = {name: os.environ.pop(name) for name in KINDS.values()}
    try:
        yield
    finally:
        os.environ.update(paths)


class Copy:
    """A node that was copied. It has what `demo.processes.Command` uses of a `subprocess.Popen`."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._code: int | None = None
        self.pid = int(connection.recv(16))

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        if self._code is None and select.select([self._connection], [], [], 0)[0]:
            self._code = int(self._connection.recv(16))
            self._connection.close()
        return self._code

    def wait(self, seconds: float | None = None) -> int:
        """Wait until it has ended and return its exit code. Raises `subprocess.TimeoutExpired`."""
        if self._code is None and not select.select([self._connection], [], [], seconds)[0]:
            raise subprocess.TimeoutExpired("node", seconds or 0.0)
        code = self.poll()
        assert code is not None
        return code


def start_node(
    arguments: Sequence[str], out: int, log: int, environment: Mapping[str, str]
) -> Copy | None:
    """Start `distro-node` with these arguments as a copy, which is killed when this process ends;
    return None if none can be made. `out` and `log` are the descriptors of its output."""
    if KINDS["nodes"] not in os.environ:
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(os.environ[KINDS["nodes"]])
    order = {
        "module": "distro_node.node",
        "options": list(arguments),
        "environment": dict(environment),
        "folder": os.getcwd(),
        "targets": [0, 1, 2],
    }
    with open(os.devnull, "rb") as nothing:
        descriptors = [nothing.fileno(), out, log]
        socket.send_fds(connection, [json.dumps(order).encode()], descriptors)
    return Copy(connection)


def serve(listener: socket.socket, *, say_pid: bool) -> tuple[dict[str, Any], list[int]] | None:
    """Copy this process for each order, pass on how the copy ended, and kill it when whoever ordered it
    is gone. Returns an order and its descriptors in each copy, and None in this process at its end."""
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    poll = select.poll()
    poll.register(0, select.POLLHUP)
    poll.register(listener, select.POLLIN)
    waiting: dict[int, tuple[int, socket.socket, int]] = {}  # by either descriptor
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == 0:
                return None
            if descriptor == listener.fileno():
                connection = listener.accept()[0]
                order, descriptors, *_ = socket.recv_fds(connection, _ORDER_BYTES, 16)
                if (pid := os.fork()) == 0:
                    return json.loads(order), descriptors
                for each in descriptors:
                    os.close(each)
                if say_pid:
                    connection.send(str(pid).encode())
                ended = os.pidfd_open(pid)
                for each in (connection.fileno(), ended):
                    poll.register(each, select.POLLIN)
                    waiting[each] = pid, connection, ended
            elif descriptor in waiting:
                pid, connection, ended = waiting[descriptor]
                if descriptor != ended:
                    os.kill(pid, signal.SIGKILL)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(OSError):
                    connection.send(str(code).encode())
                for each in (connection.fileno(), ended):
                    poll.unregister(each)
                    del waiting[each]
                connection.close()
                os.close(ended)


def _obey(order: dict[str, Any], descriptors: list[int]) -> None:
    """Take the ordered descriptors and no others, folder, variables and arguments."""
    targets = order["targets"]
    # First out of the way: one may have the number of another's target.
    free = max((*targets, *descriptors)) + 1
    moved = [os.dup2(each, free + index) for index, each in enumerate(descriptors)]
    for each, target in zip(moved, targets, strict=True):
        os.dup2(each, target)
    kept = sorted({0, 1, 2, *targets})
    for low, high in zip(kept, [*kept[1:], 1 << 16], strict=True):
        os.closerange(low + 1, high)
    os.setsid()
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    # It was found with the variables of the process that was copied.
    tempfile.tempdir = None
    sys.argv[1:] = order["options"]


def _main(kind: str, descriptor: int) -> None:
    if kind == "trainers":
        from distro_node.node.trainer import __main__ as trainer
        from distro_node.node.trainer.ranks import elastic_rank, following  # noqa: F401

        # Loaded by the first use otherwise, in every copy: here the model of most tests.
        from transformers.models.llama import modeling_llama  # noqa: F401

        programs = {
            "distro_node.node.trainer": trainer.main,
            elastic_rank.__name__: elastic_rank.main,
        }
    else:
        from distro_node.node import bootstrap, daemon, observer  # noqa: F401
        from distro_node.node.__main__ import main
        from distro_node.node.cli import main as cli  # noqa: F401
        from distro_node.node.create import new_swarm  # noqa: F401

        # The parser of commands loads it with the first option.
        from pydantic import TypeAdapter  # noqa: F401

        programs = {"distro_node.node": main}

    ordered = serve(socket.socket(fileno=descriptor), say_pid=kind == "nodes")
    if ordered is None:
        return
    order, descriptors = ordered
    _obey(order, descriptors)
    program = programs[order["module"]]
    if kind == "nodes":
        signal.signal(signal.SIGINT, signal.default_int_handler)
        program()
        return
    code = 1
    try:
        program()
        code = 0
    finally:
        os._exit(code)  # Private here: what this process was must not be tidied up twice


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
