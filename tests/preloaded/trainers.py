"""A process that has loaded the trainer's libraries and is copied for each trainer that a test starts.

Loading torch and transformers takes most of a trainer's processor time in tests, and there are
hundreds of trainers. The copy is made by `fork`, before any thread exists; it confines itself, reads
its requests and ends like any trainer. `python trainers.py LISTENER` serves the listening socket
with this descriptor until its standard input closes.
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
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

VARIABLE = "PRELOADED_TRAINERS"
_ORDER_BYTES = 1 << 18


@contextlib.contextmanager
def preloaded(folder: Path) -> Iterator[None]:
    """Have trainers that this process and its children start continued by copies; the libraries are
    loaded when the first one asks. `folder` holds the socket."""
    from distro_node.node.training.environment import environment

    path = folder / "trainers"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen(64)
    life, ours = os.pipe()

    def start() -> None:
        if listener in select.select([listener, life], [], [])[0]:
            started.append(
                subprocess.Popen(
                    [sys.executable, "-P", __file__, str(listener.fileno())],
                    stdin=life,
                    pass_fds=(listener.fileno(),),
                    env=environment(1, str(folder)),
                )
            )

    started: list[subprocess.Popen[bytes]] = []
    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    paths = os.pathsep.join(
        filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH")))
    )
    before = {name: os.environ.get(name) for name in (VARIABLE, "PYTHONPATH")}
    os.environ |= {VARIABLE: str(path), "PYTHONPATH": paths}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        os.close(ours)
        thread.join()
        for process in started:
            process.terminate()
            process.wait()
        os.close(life)
        listener.close()


@contextlib.contextmanager
def cold() -> Iterator[None]:
    """Have trainers load their libraries meanwhile, each in a process of its own."""
    path = os.environ.pop(VARIABLE)
    try:
        yield
    finally:
        os.environ[VARIABLE] = path


def serve(listener: socket.socket) -> None:
    """Copy this process for each order, pass on how the copy ended, and kill it when its stand-in is
    gone."""
    from distro_node.node.trainer import worker  # noqa: F401

    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    poll = select.poll()
    poll.register(0, select.POLLHUP)
    poll.register(listener, select.POLLIN)
    waiting: dict[int, tuple[int, socket.socket, int]] = {}  # by either descriptor
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == 0:
                return
            if descriptor == listener.fileno():
                connection = listener.accept()[0]
                order, descriptors, *_ = socket.recv_fds(connection, _ORDER_BYTES, 16)
                if (pid := os.fork()) == 0:
                    _become_trainer(json.loads(order), descriptors)
                for each in descriptors:
                    os.close(each)
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


def _become_trainer(order: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Be the trainer that was asked for: its descriptors and no others, its folder, its variables."""
    try:
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
        sys.argv = ["trainer", *order["options"]]

        from distro_node.node.trainer.__main__ import main

        main()
    finally:
        os._exit(1)  # Private here: what this process was must not be tidied up twice


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
