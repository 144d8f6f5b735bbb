"""Limits of time and memory while the trainer processes a stranger's definition.

A few bytes of a configuration or of a tokenizer can ask for hours of work or all of a machine's
memory. `architectures` checks beforehand the settings that it knows; these limits cover the rest.
Python code is interrupted. A library's native code cannot be interrupted, so the kernel ends the
process, and the node reports why.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import FailureKind, TrainerFailed

if sys.platform != "win32":
    import resource

# The clock by which Linux enforces RLIMIT_CPU: the process's time in ticks (CPUCLOCK_PROF of this
# process, numbered as in linux/posix-timers.h). It deviates from the exact time that Python reports
# by some percent on a busy machine: minutes in a process that has computed for an hour.
_LIMITS_CLOCK = (~0 << 3) | 0
# CPU time for which the process may go on after the limit for Python code, before the kernel ends it.
_GRACE_SECONDS = 5.0


@contextmanager
def limited(
    kind: FailureKind, what: str, *, seconds: float = 60.0, memory: int = 2 << 30
) -> Iterator[None]:
    """Limit the block to `seconds` (of wall time in Python code; of CPU time, with some grace, in native
    code), and to `memory` bytes more than the process has at its start. The largest published tokenizers
    take some seconds and less than a gigabyte.

    Raises `TrainerFailed` of this `kind`, with `what` as the subject of its message, if Python code
    reaches a limit. Memory is limited on Linux only. In a thread other than the main one, where
    signals do not arrive, only the kernel's limits apply.
    """
    late = TrainerFailed(kind, f"{what} takes more than {seconds:g} s")
    with _cpu_limit(seconds + _GRACE_SECONDS), _memory_limit(memory), interrupted(seconds, late):
        try:
            yield
        except MemoryError:
            problem = f"{what} takes more than {memory >> 20} MiB"
            raise TrainerFailed(kind, problem) from None


def data_ceiling(more: int | None) -> int | None:
    """Return the limit for `data_below` that is `more` bytes above what the process has now; None for no
    limit, or if the system does not report what it has."""
    has = _data_bytes()
    return None if more is None or has is None else has + more


@contextmanager
def data_below(ceiling: int | None) -> Iterator[None]:
    """Limit the process's own memory in the block to `ceiling` bytes in all. Libraries report that
    memory has run out, or end the process."""
    if ceiling is None or sys.platform == "win32":
        yield
        return
    with _DATA.lowered(ceiling):
        yield


@contextmanager
def interrupted(seconds: float, error: Exception, again: float = 0.0) -> Iterator[None]:
    """Raise `error` in Python code that is still in the block after `seconds` of wall time, and then
    again every `again` seconds, unless that is 0. Nothing is raised in threads other than the main one,
    or on Windows."""
    if threading.current_thread() is not threading.main_thread() or sys.platform == "win32":
        yield
        return

    def stop(*_: object) -> None:
        raise error

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, again)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@contextmanager
def _cpu_limit(seconds: float) -> Iterator[None]:
    """Make the kernel end the process (SIGXCPU) after `seconds` of CPU time in the block."""
    if sys.platform == "win32":
        yield
        return
    with _CPU.lowered(int(_computed_seconds() + seconds) + 1):
        yield


def _computed_seconds() -> float:
    """Return the process's CPU time so far, as the kernel counts it for RLIMIT_CPU."""
    if sys.platform == "linux":
        with suppress(OSError):
            return time.clock_gettime(_LIMITS_CLOCK)
    return time.process_time()


@contextmanager
def _memory_limit(more: int) -> Iterator[None]:
    with data_below(data_ceiling(more)):
        yield


class _Limit:
    """One of the kernel's limits of this process. Several threads may lower it at the same time; then
    the lowest value applies. When all have left their blocks, the original limit applies again."""

    def __init__(self, which: int) -> None:
        self._which = which
        self._lock = threading.Lock()
        self._limits: list[int] = []
        self._original = (0, 0)

    @contextmanager
    def lowered(self, limit: int) -> Iterator[None]:
        with self._lock:
            if not self._limits:
                self._original = resource.getrlimit(self._which)
            self._limits.append(limit)
            self._set()
        try:
            yield
        finally:
            with self._lock:
                self._limits.remove(limit)
                self._set()

    def _set(self) -> None:
        soft, hard = self._original
        bounds = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
        lowered = min([*self._limits, *bounds]) if self._limits else soft
        resource.setrlimit(self._which, (lowered, hard))


if sys.platform != "win32":
    _CPU, _DATA = _Limit(resource.RLIMIT_CPU), _Limit(resource.RLIMIT_DATA)


def _data_bytes() -> int | None:
    """Return the process's own memory in bytes, as the kernel counts it for RLIMIT_DATA; None if the
    system does not report it."""
    try:
        lines = Path("/proc/self/status").read_text("ascii").splitlines()
    except OSError:
        return None
    sizes = [line.split()[1] for line in lines if line.startswith("VmData:")]
    return 1024 * int(sizes[0]) if sizes else None
