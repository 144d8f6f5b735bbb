"""The demo's processes: started through the real command line, killed by real signals, never left
running.

Each process runs in its own process group, so that a Ctrl-C meant for the demo does not reach it.
Trainers form further groups; while their parents run, they are recorded by process id and start time, so
that they can still be found afterwards.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from ..config import ENVIRONMENT_PREFIX
from ..util.operating_system import ENDING_SIGNALS, OWN_GROUP, kill_group, signal_handlers
from ..util.sanitize import harmless

# How long killed processes may take to end; on a machine that swaps, this takes long.
_GONE_SECONDS = 10.0
_LOG_TAIL_BYTES = 16_384
_LOG_TAIL_LINES = 8


class Command:
    """One running `distro-node` command, with its output in two files and all processes that it has
    started."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        out: Path,
        log: Path,
        prefix: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Start the command. Its stdout overwrites `out`; its stderr is appended to `log`.

        `prefix` is put before the command; the program in it has to `exec` the command. The environment
        is ours without distro-node's own variables, plus OMP_NUM_THREADS=1 and `variables`.
        """
        with log.open("ab") as errors, out.open("wb") as answer:
            self._process = subprocess.Popen(
                # -P: nothing is imported from the working directory.
                [*prefix, sys.executable, "-P", "-m", "distro_node.node", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=answer,
                stderr=errors,
                env=_environment() | {"OMP_NUM_THREADS": "1"} | dict(variables or {}),
                **OWN_GROUP,
            )
        self.pid = self._process.pid
        self._family: set[psutil.Process] = set()

    @property
    def code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def remember_children(self) -> None:
        """Record the processes that it has started so far."""
        # The process and its children may end at any moment.
        with contextlib.suppress(psutil.Error):
            self._family.update(psutil.Process(self.pid).children(recursive=True))

    def children(self) -> list[psutil.Process]:
        """Return its recorded children that still run."""
        return [process for process in self._family if is_running(process)]

    def kill(self) -> None:
        """Send SIGKILL to its whole process group. Processes that it has started in other groups get no
        signal."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                kill_group(self.pid)

    def wait(self, seconds: float) -> int:
        """Wait until it has ended and return its exit code. Raises `subprocess.TimeoutExpired`."""
        return self._process.wait(seconds)


class Program(Command):
    """A command of the demo. Its output goes into files in the demo's log folder."""

    def __init__(self, name: str, arguments: Sequence[str], logs: Path, config: Path) -> None:
        self.name = name
        self.log = logs / f"{name}.log"
        self.answer = logs / f"{name}.out"
        super().__init__(["--config", str(config), *arguments], out=self.answer, log=self.log)

    def wait_gone(self) -> None:
        """Wait until it has ended. Raises `RuntimeError` if that takes too long."""
        try:
            self.wait(_GONE_SECONDS)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"process {self.pid} ({self.name}) is still running") from None

    def last_lines(self) -> list[str]:
        """Return the last lines of its log, for people."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _LOG_TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
        return [_readable(line) for line in lines[-_LOG_TAIL_LINES:]]

    def printed(self) -> dict[str, Any] | None:
        """Return the JSON object that it has printed; None if it has not printed a complete one yet."""
        text = self.answer.read_text("utf-8")
        return json.loads(text) if text.endswith("\n") else None


class Processes:
    """All programs of a demo; leaving the context kills every one of them."""

    def __init__(self, logs: Path, config: Path) -> None:
        self._logs = logs
        self._config = config
        self._programs: list[Program] = []

    def start(self, name: str, *arguments: str) -> Program:
        """Start `distro-node` with these arguments."""
        program = Program(name, arguments, self._logs, self._config)
        self._programs.append(program)
        return program

    def remember_children(self) -> None:
        """Record the children of all running programs; call this every second or so."""
        for program in self._programs:
            if program.code is None:
                program.remember_children()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        # A second Ctrl-C must not leave some of them running; ending all takes a few seconds at most.
        with _ignoring_interrupts():
            self.remember_children()
            for program in self._programs:
                program.kill()
            self._kill_rest()
            for program in self._programs:
                program.wait_gone()

    def _kill_rest(self) -> None:
        """Kill recorded processes that still run after their parents have ended, such as trainers."""
        deadline = time.monotonic() + _GONE_SECONDS
        while rest := [child for program in self._programs for child in program.children()]:
            for process in rest:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            if time.monotonic() > deadline:
                numbers = ", ".join(str(process.pid) for process in rest)
                raise RuntimeError(f"processes that SIGKILL does not end: {numbers}")
            time.sleep(0.05)


@contextlib.contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block like Ctrl-C, so that it cleans up."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    kinds = (each for each in ENDING_SIGNALS if each != signal.SIGINT)
    with signal_handlers(dict.fromkeys(kinds, interrupt)):
        yield


@contextlib.contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    with signal_handlers(dict.fromkeys(ENDING_SIGNALS, signal.SIG_IGN)):
        yield


def _environment() -> dict[str, str]:
    """Return our environment without variables that would change the commands' behaviour."""
    return {k: v for k, v in os.environ.items() if not k.startswith(f"{ENVIRONMENT_PREFIX}_")}


def is_running(process: psutil.Process) -> bool:
    """Whether a process runs. A process that has ended and is not reaped yet (a zombie) does not."""
    try:
        # is_running() compares start times, so a process id reused by another process does not count.
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _readable(line: str) -> str:
    try:
        entry = json.loads(line)
        return harmless(f"{entry['level']}: {entry['message']}")
    except (ValueError, TypeError, KeyError):
        return harmless(line)
