"""How long single steps of tasks hold the event loop, and so everybody who waits for this node.

While a task computes or waits for a disk, no other task runs: heartbeats and votes are late, and the
others' downloads stand still. A step is measured by the clock, so that it also counts while the machine
gives the processor to somebody else.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable

import trio

_log = logging.getLogger(__name__)

NOTED_SECONDS = 0.01
"""Shorter steps are everyday life and are not noted."""


def spare_what_stays() -> None:
    """Keep the garbage collector from looking through all that exists by now, time and again.

    The modules alone are 110,000 objects: a pause of 70 ms, in which nothing else happens.
    """
    gc.collect()
    gc.freeze()


class StallMeter(trio.abc.Instrument):
    """Tells `note` of every step of a task that took longer than `NOTED_SECONDS`, and the log whose."""

    def __init__(self, note: Callable[[float], object]) -> None:
        self._note = note
        # Installed in the middle of a step, whose beginning it has not seen.
        self._began = self._used = float("inf")

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """A task goes on."""
        self._used = time.thread_time()
        self._began = time.perf_counter()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """It waits for something, or has ended."""
        seconds = time.perf_counter() - self._began
        if seconds > NOTED_SECONDS:
            self._note(seconds)
            used = time.thread_time() - self._used
            _log.debug(
                "task %s held the event loop for %.0f ms, %.0f ms of them computing",
                *(task.name, 1e3 * seconds, 1e3 * used),
            )
