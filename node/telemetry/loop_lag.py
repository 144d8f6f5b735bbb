"""Event loop stalls: single steps of tasks that block every other task of the node.

While a task computes or waits for a disk, no other task runs: heartbeats and votes are late, and peers'
downloads from this node stall. A step is measured in wall clock time, so it includes time in which the
machine runs other programs.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable

import trio

_log = logging.getLogger(__name__)

NOTED_SECONDS = 0.01
"""Shorter steps are normal and are not recorded."""


def freeze_permanent_objects() -> None:
    """Exempt all existing objects from garbage collection.

    The modules alone hold 110,000 objects; a collection that visits them takes 70 ms, in which nothing
    else runs.
    """
    gc.collect()
    gc.freeze()


class StallMeter(trio.abc.Instrument):
    """Calls `note` for every task step longer than `NOTED_SECONDS`, and logs the task's name."""

    def __init__(self, note: Callable[[float], object]) -> None:
        self._note = note
        # Infinite, because the meter is installed during a step whose start it has not seen.
        self._began = float("inf")

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Record the start of a task's step. There are thousands a second, so the thread's processor
        time, for which the system must be asked, is not taken."""
        self._began = time.perf_counter()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Measure the step, which ended because the task waits for something or has finished."""
        seconds = time.perf_counter() - self._began
        if seconds > NOTED_SECONDS:
            self._note(seconds)
            _log.debug("task %s held the event loop for %.0f ms", task.name, 1e3 * seconds)
