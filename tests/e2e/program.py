"""Commands as processes of their own: started, read, signalled, and never left behind.

Nothing waits for a fixed time: a condition is looked at again and again until it holds, or until a
limit that only a broken program reaches.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import psutil

T = TypeVar("T")

# Far beyond what anything here takes on two idle cores; test machines are shared. What has ended is not
# waited for, and whoever waits goes on as soon as there is something to go on with.
PATIENCE_SECONDS = 600.0
_POLL_SECONDS = 0.05


class Program:
    """One `distro-node` command as a process of its own; its output goes into files."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str | Path],
        folder: Path,
        prefix: Sequence[str] = (),
    ) -> None:
        """`prefix` is put before the command; it must become the command itself (`exec`)."""
        self.name = name
        self.stdout_path = folder / f"{name}.out"
        self.stderr_path = folder / f"{name}.err"
        with self.stdout_path.open("wb") as out, self.stderr_path.open("ab") as err:
            self._errors_from = err.tell()
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-P", "-m", "distro_node.node", *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=_environment(),
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._family: set[psutil.Process] = set()

    @property
    def code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    @property
    def stdout(self) -> str:
        """What it has printed."""
        return self.stdout_path.read_text("utf-8")

    @property
    def stderr(self) -> str:
        """What it has written to stderr, its log included."""
        with self.stderr_path.open("rb") as file:
            file.seek(self._errors_from)
            return file.read().decode("utf-8", "replace")

    @property
    def complaint(self) -> list[str]:
        """The lines on stderr that are no log lines."""
        return [line for line in self.stderr.splitlines() if line and not _is_log(line)]

    def children(self) -> list[psutil.Process]:
        """Its children that run."""
        with contextlib.suppress(psutil.Error):
            self._family.update(psutil.Process(self.pid).children(recursive=True))
        return [child for child in self._family if is_running(child)]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone."""
        os.kill(self.pid, number)

    def resume(self) -> None:
        """Let a process that was stopped by a signal go on."""
        if self.code is None:
            self.signal(signal.SIGCONT)

    def wait(self, limit: float = PATIENCE_SECONDS) -> int:
        """Wait for its end; the exit code."""
        return self._process.wait(limit)

    def kill(self) -> None:
        """Kill -9, without a word to anybody; what it started must end by itself."""
        self.children()
        if self.code is None:
            self._process.kill()
            self._process.wait()

    def destroy(self) -> None:
        """Kill it and everything that it started."""
        self.kill()
        for child in self.children():
            with contextlib.suppress(psutil.Error):
                child.kill()

    def refused_with(self, code: int, *words: str) -> None:
        """Check that it ended with this code, and with one line that says why and one what to do."""
        assert self.wait() == code, self.stderr
        assert len(self.complaint) == 2, self.stderr
        problem, remedy = self.complaint
        assert problem.startswith("error: ")
        assert remedy.startswith("  ")
        for word in words:
            assert word in problem
        assert "Traceback" not in self.stderr


def wait_for(
    condition: Callable[[], T | None],
    what: str,
    *,
    limit: float = PATIENCE_SECONDS,
    describe: Callable[[], object] | None = None,
) -> T:
    """Wait until `condition` is true and return what it returned."""
    deadline = time.monotonic() + limit
    while not (result := condition()):
        if time.monotonic() > deadline:
            shown = f": {describe()}" if describe is not None else ""
            raise AssertionError(f"waited {limit:g} s in vain for {what}{shown}")
        time.sleep(_POLL_SECONDS)
    return result


def is_running(process: psutil.Process) -> bool:
    """Whether a process runs; one that has ended and waits for its parent to ask does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DISTRO_NODE_", "XDG_"))}
    return kept | {"OMP_NUM_THREADS": "1", "DISTRO_NODE_DEBUG": "1"}


def _is_log(line: str) -> bool:
    # `2025-01-31T12:00:00Z INFO …`
    return line[:4].isdigit() and line[10:11] == "T" and line[19:20] == "Z"
