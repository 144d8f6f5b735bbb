"""Display of a long command's stages on stderr: bars on a terminal, otherwise plain lines.

Both change while a stage goes on, even if the stage cannot say how far it is.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..util.progress import ShowProgress
from ..util.sanitize import harmless

if TYPE_CHECKING:
    from rich.console import Console

# Interval between two lines about a stage: one that takes seconds, such as the start of a trainer, and
# one that knows how far it is and may take hours.
_INTERVAL_SECONDS = 5.0
_COUNTED_INTERVAL_SECONDS = 15.0
_TICK_SECONDS = 0.5
_MAX_BAR_WIDTH = 40
# Columns of a terminal on which there is room for "left".
_WIDE = 60
_LONGEST = ("9999 s", "9999 s left")


@dataclass
class _Stage:
    what: str
    began: float
    done: int
    total: int
    said: float
    """Time of the last line about it."""

    @property
    def counted(self) -> bool:
        """Whether the stage knows how far it is."""
        return self.total > 1


class StageLines:
    """The lines about stages, by the time in seconds at which each is due."""

    def __init__(self) -> None:
        self._stages: dict[str, _Stage] = {}
        self._current: _Stage | None = None

    def update(self, what: str, done: int, total: int, now: float) -> str | None:
        """Note how far a stage is; return a line if it begins."""
        stage = self._stages.get(what)
        line = None
        if stage is None:
            stage = self._stages[what] = _Stage(what, now, done, total, now)
            line = f"{what} …"
        stage.done, stage.total = done, total
        self._current = stage if done < total else None
        return line

    def due(self, now: float) -> str | None:
        """Return a line about the current stage if the last one was long ago."""
        stage = self._current
        if stage is None:
            return None
        interval = _COUNTED_INTERVAL_SECONDS if stage.counted else _INTERVAL_SECONDS
        if now < stage.said + interval:
            return None
        stage.said = now
        share = f"{stage.done / stage.total:.0%}, " if stage.counted else ""
        return f"{stage.what}: {share}{now - stage.began:.0f} s so far …"


@contextmanager
def stage_display() -> Iterator[ShowProgress]:
    """Show the stages that are reported to the yielded function. stdout is left to the result."""
    from rich.console import Console

    from ..control.terminal import redraws

    console = Console(stderr=True)
    shown = _bars(console) if redraws(console) else _lines()
    with shown as show:
        yield show


@contextmanager
def _lines() -> Iterator[ShowProgress]:
    lines, lock, over = StageLines(), threading.Lock(), threading.Event()

    def say(line: str | None) -> None:
        if line is not None:
            print(harmless(line), file=sys.stderr, flush=True)

    def show(what: str, done: int, total: int) -> None:
        with lock:
            say(lines.update(what, done, total, time.monotonic()))

    def go_on() -> None:
        while not over.wait(_TICK_SECONDS):
            with lock:
                say(lines.due(time.monotonic()))

    # A thread, because most stages compute in the main one.
    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield show
    finally:
        over.set()
        thread.join()


@contextmanager
def _bars(console: Console) -> Iterator[ShowProgress]:
    from rich.progress import BarColumn, Progress, ProgressColumn, Task
    from rich.text import Text

    bar_width = min(_MAX_BAR_WIDTH, max(1, console.width // 4))
    # Cut here: the library would cut all columns, and so the seconds.
    wide = console.width >= _WIDE
    name_width = max(1, console.width - bar_width - len(_LONGEST[wide]) - 2)

    class Name(ProgressColumn):
        """The stage's name, as far as there is room."""

        def render(self, task: Task) -> Text:
            name = Text(task.description, no_wrap=True)
            name.truncate(name_width, overflow="ellipsis")
            return name

    class Seconds(ProgressColumn):
        """The time left, or the time so far of a stage that does not know how far it is."""

        def render(self, task: Task) -> Text:
            left = None if task.finished else task.time_remaining
            if left is not None:
                return Text(f"{left:.0f} s left" if wide else f"{left:.0f} s")
            return Text(f"{task.elapsed or 0:.0f} s")

    columns = (
        Name(),
        BarColumn(bar_width=bar_width),
        Seconds(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        tasks = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what)
            # Until a stage without a count is done, a moving bar is more informative than 0 %.
            bars.update(tasks[what], completed=done, total=None if total == 1 > done else total)

        yield show
