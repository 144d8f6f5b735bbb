"""Nodes of `home_program` in network namespaces, each a copy of one process.

That one has loaded the libraries, which takes most of such a node's processor time.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import trio


class HomeProcess:
    """A node as a process in the namespaces that `prefix` runs a command in; its output goes into
    files."""

    def __init__(
        self, prefix: Sequence[str], arguments: Sequence[str], out: Path, err: Path | None = None
    ) -> None:
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        # `ip netns exec` also mounts the namespace's own files: a process that it starts holds both
        # kinds of namespaces until the copy has entered them.
        with subprocess.Popen(
            [*prefix, "sh", "-c", "echo; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline(), "the namespace is gone"
            order = {
                "inside": holder.pid,
                "arguments": list(arguments),
                "out": str(out),
                "err": str(err or out),
            }
            server.stdin.write(json.dumps(order).encode() + b"\n")
            server.stdin.flush()
            self._pid = int(server.stdout.readline())
            self._ended = os.pidfd_open(self._pid)

    def poll(self) -> int | None:
        """Return 0 if it has ended, whatever its code; else None."""
        return 0 if select.select([self._ended], [], [], 0)[0] else None

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._signal(signal.SIGKILL)

    def wait(self) -> None:
        """Wait until it has ended."""
        select.select([self._ended], [], [])

    def _signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._ended, number)


@functools.cache
def _server() -> subprocess.Popen[bytes]:
    """Start the process that is copied. It ends with this one, when its standard input closes."""
    return subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def _serve() -> None:
    """Copy this process for each order on standard input, and print the copy's process id."""
    import home_program

    # Copies that end leave nothing to be waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while order := sys.stdin.buffer.readline():
        if os.fork() == 0:
            try:
                _enter(**json.loads(order))
                trio.run(home_program.main)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)  # Private here: what this process was must not be tidied up twice


def _enter(inside: int, arguments: list[str], out: str, err: str) -> None:
    """Be a process in the namespaces of the process `inside`, with its output in these files."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    library = ctypes.CDLL(None, use_errno=True)
    for kind in ("net", "mnt"):
        with open(f"/proc/{inside}/ns/{kind}") as namespace:
            if library.setns(namespace.fileno(), 0):
                raise OSError(ctypes.get_errno(), f"cannot enter the namespace: {kind}")
    answer = os.dup(1)
    for path, descriptor in ((os.devnull, 0), (out, 1), (err, 2)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.argv[1:] = arguments
    os.write(answer, b"%d\n" % os.getpid())
    os.close(answer)


if __name__ == "__main__":
    _serve()
