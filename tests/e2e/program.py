"""Commands as processes of their own: started, read, signalled, and never left behind.

Nothing waits for a fixed time: a condition is polled until it holds, or until a limit that only a
broken program reaches.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil
from distro_node.node.demo.processes import Command, _environment
from preloaded.copies import start_node

T = TypeVar("T")

# Far more than anything here takes on two idle cores; test machines are shared. A process that has
# ended is not waited for, and a wait ends as soon as its condition holds.
PATIENCE_SECONDS = 600.0
_POLL_SECONDS = 0.2


class Program(Command):
    """One `distro-node` command as a process of its own; its output goes into files.

    It is a copy of a process that has loaded the libraries (`preloaded.copies`), unless something else
    has to start it.
    """

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
        self._errors_from = self.stderr_path.stat().st_size if self.stderr_path.exists() else 0
        words = [*map(str, arguments)]
        # Without the configuration of the user who runs the tests.
        variables = {"DISTRO_NODE_DEBUG": "1", "XDG_CONFIG_HOME": str(folder)}
        copied = None
        if not prefix:
            with self.stderr_path.open("ab") as log, self.stdout_path.open("wb") as out:
                settings = _environment() | {"OMP_NUM_THREADS": "1"} | variables
                copied = start_node(words, out.fileno(), log.fileno(), settings)
        if copied is None:
            super().__init__(
                words,
                out=self.stdout_path,
                log=self.stderr_path,
                prefix=prefix,
                variables=variables,
            )
            return
        process: Any = copied
        self._process, self.pid, self._family = process, copied.pid, set()

    @property
    def stdout(self) -> str:
        """Its standard output so far."""
        return self.stdout_path.read_text("utf-8")

    @property
    def stderr(self) -> str:
        """Its stderr so far, including its log."""
        with self.stderr_path.open("rb") as file:
            file.seek(self._errors_from)
            return file.read().decode("utf-8", "replace")

    @property
    def complaint(self) -> list[str]:
        """The lines on stderr other than log lines."""
        return [line for line in self.stderr.splitlines() if line and not _is_log(line)]

    def children(self) -> list[psutil.Process]:
        """Return its running children."""
        self.remember_children()
        return super().children()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone."""
        os.kill(self.pid, number)

    def resume(self) -> None:
        """Continue a process that was stopped by a signal."""
        if self.code is None:
            self.signal(signal.SIGCONT)

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Wait for its end and return the exit code."""
        return super().wait(seconds)

    def kill(self) -> None:
        """Send SIGKILL to the process alone; processes it started must end by themselves."""
        self.children()
        if self.code is None:
            self.signal(signal.SIGKILL)
            self.wait()

    def destroy(self) -> None:
        """Kill it and everything that it started."""
        self.kill()
        for child in self.children():
            with contextlib.suppress(psutil.Error):
                child.kill()

    def refused_with(self, code: int, *words: str) -> None:
        """Check that it ended with this code, and with one line that states the reason and one with
        the remedy."""
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
    """Wait until `condition` is true and return its result."""
    deadline = time.monotonic() + limit
    while not (result := condition()):
        if time.monotonic() > deadline:
            shown = f": {describe()}" if describe is not None else ""
            raise AssertionError(f"waited {limit:g} s in vain for {what}{shown}")
        time.sleep(_POLL_SECONDS)
    return result


def _is_log(line: str) -> bool:
    # `2025-01-31T12:00:00Z INFO …`
    return line[:4].isdigit() and line[10:11] == "T" and line[19:20] == "Z"
