"""Limits of time and memory while the trainer processes a stranger's definition.

A few bytes of a configuration or of a tokenizer can ask for hours of work or all of a machine's
memory. `architectures` checks beforehand the settings that it knows; these limits cover the rest.
Python code is interrupted. A library's native code cannot be interrupted, so the kernel ends the
process, and the node reports why.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..util.operating_system import (
    Limit,
    cpu_seconds,
    data_bytes,
    process_limit,
    set_process_limit,
    timer,
)
from .errors import FailureKind, TrainerFailed

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
    has = data_bytes()
    return None if more is None or has is None else has + more


@contextmanager
def data_below(ceiling: int | None) -> Iterator[None]:
    """Limit the process's own memory in the block to `ceiling` bytes in all. Libraries report that
    memory has run out, or end the process."""
    if ceiling is None:
        yield
        return
    with _DATA.lowered(ceiling):
        yield


@contextmanager
def interrupted(seconds: float, error: Exception, again: float = 0.0) -> Iterator[None]:
    """Raise `error` in Python code that is still in the block after `seconds` of wall time, and then
    again every `again` seconds, unless that is 0. Nothing is raised in threads other than the main one,
    or on a system without such timers."""

    def stop(*_: object) -> None:
        raise error

    with timer(stop, seconds, again):
        yield


@contextmanager
def _cpu_limit(seconds: float) -> Iterator[None]:
    """Make the kernel end the process (SIGXCPU) after `seconds` of CPU time in the block."""
    with _CPU.lowered(int(cpu_seconds() + seconds) + 1):
        yield


@contextmanager
def _memory_limit(more: int) -> Iterator[None]:
    with data_below(data_ceiling(more)):
        yield


class _Limit:
    """One of the kernel's limits of this process. Several threads may lower it at the same time; then
    the lowest value applies. When all have left their blocks, the original limit applies again."""

    def __init__(self, which: Limit) -> None:
        self._which: Limit = which
        self._lock = threading.Lock()
        self._limits: list[int] = []
        self._original: tuple[int | None, int | None] = (None, None)

    @contextmanager
    def lowered(self, limit: int) -> Iterator[None]:
        with self._lock:
            if not self._limits:
                self._original = process_limit(self._which) or (None, None)
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
        bounds = [limit for limit in (soft, hard) if limit is not None]
        set_process_limit(self._which, min([*self._limits, *bounds]) if self._limits else soft)


_CPU, _DATA = _Limit("CPU"), _Limit("DATA")
