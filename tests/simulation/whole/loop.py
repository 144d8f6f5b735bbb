"""A deterministic event loop: no real clock, no threads, and no randomness except the seed's.

It replaces parts of Python and trio rather than of the node: the order in which ready tasks run, the
threads (their work is done in the loop, at a time that the node's disk decides), the time of day, and
the source of randomness. Sets of bytes have a different order in each process unless `PYTHONHASHSEED` is
set: to compare runs of two processes, set it.
"""

from __future__ import annotations

import gc
import importlib
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar
from unittest.mock import patch

import trio
from distro_node.node.network.cancel_scopes import open_scope
from trio.testing import MockClock

_T = TypeVar("_T")

EPOCH = 1_800_000_000.0
"""The time of day at the beginning of every run."""


@dataclass
class Machine:
    """The properties of one node's computer; every task of its process has it."""

    ahead: float = 0.0
    """Seconds that its clock is ahead of the others'."""
    work: Callable[[], float] = lambda: 0.0005
    """Draws how long a job of a thread takes."""


_machine: ContextVar[Machine] = ContextVar("machine")


def use(machine: Machine) -> None:
    """Assign this task, and all that it starts, to a process on `machine`."""
    _machine.set(machine)


def run(seed: int, main: Callable[[], Awaitable[_T]]) -> _T:
    """Run `main` in virtual time; the seed decides everything random."""
    before = random.getstate()
    # Garbage must not be collected at a moment that depends on what ran before.
    gc.collect()
    gc.disable()
    try:
        with _determined(seed):
            return trio.run(main, clock=MockClock(autojump_threshold=0))
    finally:
        gc.enable()
        random.setstate(before)


@contextmanager
def _determined(seed: int) -> Iterator[None]:
    core: Any = importlib.import_module("trio._core._run")
    chance = random.Random(f"secrets {seed}")
    random.seed(f"process {seed}")
    # Private to trio, which has no other way to make a run repeatable.
    core._r.seed(f"tasks {seed}")
    with ExitStack() as stack:
        for owner, name, value in (
            (core, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
            (trio.to_thread, "run_sync", _run_here),
            ("time", "time", _time),
            ("secrets", "token_bytes", lambda count=32: chance.randbytes(count)),
            ("secrets", "token_hex", lambda count=32: chance.randbytes(count).hex()),
        ):
            if isinstance(owner, str):
                stack.enter_context(patch(f"{owner}.{name}", value))
            else:
                stack.enter_context(patch.object(owner, name, value))
        yield


def _time() -> float:
    machine = _machine.get(None)
    try:
        now = trio.current_time()
    except RuntimeError:
        now = 0.0
    return EPOCH + now + (machine.ahead if machine is not None else 0.0)


async def _run_here(
    function: Callable[..., _T],
    *arguments: Any,
    limiter: trio.CapacityLimiter | None = None,
    abandon_on_cancel: bool = False,
    **_: Any,
) -> _T:
    """Run a job in the loop: half of the time passes before it is done, half after. Replaces
    `trio.to_thread.run_sync`."""
    await trio.lowlevel.checkpoint_if_cancelled()
    machine = _machine.get(None)
    seconds = machine.work() if machine is not None else 0.0
    # As with a thread: a job that has begun runs to its end.
    with open_scope() as scope:
        scope.shield = not abandon_on_cancel
        async with limiter or nullcontext():
            await trio.sleep(seconds / 2)
            result = function(*arguments)
            await trio.sleep(seconds / 2)
            return result
    raise AssertionError("a cancelled thread ends with its caller")
