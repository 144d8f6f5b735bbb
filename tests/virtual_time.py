"""Virtual time for tests of tasks: a clock that jumps on when all of them wait."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import trio
from trio.testing import MockClock


@contextmanager
def jumping_clock() -> Iterator[MockClock]:
    """Return a virtual clock that stops while a thread works, however slow the machine is.

    pytest-trio's own clock jumps on meanwhile, so timeouts expire on work that has only begun.
    """
    clock = MockClock(autojump_threshold=0.0)
    run_sync, at_work = trio.to_thread.run_sync, 0

    async def run_while_time_stands(*arguments: Any, **options: Any) -> Any:
        nonlocal at_work
        at_work += 1
        clock.autojump_threshold = math.inf
        try:
            return await run_sync(*arguments, **options)
        finally:
            at_work -= 1
            if not at_work:
                clock.autojump_threshold = 0.0

    with patch.object(trio.to_thread, "run_sync", run_while_time_stands):
        yield clock


def run_in_virtual_time(*arguments: Any, **options: Any) -> Any:
    """Do what `trio.run` does, in virtual time."""
    with jumping_clock() as clock:
        return trio.run(*arguments, **{**options, "clock": clock})
