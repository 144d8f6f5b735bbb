"""Helpers for terminal output: sizes, curves in one line, lines that are broken at spaces, and whether a
terminal can be redrawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_BARS = "▁▂▃▄▅▆▇█"


def stdout_console() -> Console:
    """Return a console on stdout. `rich` would end the program with exit code 1 if the reader of a pipe
    has ended; this one raises the `BrokenPipeError`."""
    from rich.console import Console

    class Raising(Console):
        """A console that leaves a broken pipe to the caller."""

        def on_broken_pipe(self) -> None:
            """Raise the error that is being handled."""
            raise

    return Raising(highlight=False)


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the values as a curve of at most `width` characters, from the lowest to the highest.

    More values than characters are averaged in groups. Values that are not finite are left out.
    """
    finite = [value for value in values if math.isfinite(value)]
    count = min(width, len(finite))
    if count <= 0:
        return ""
    points = []
    for index in range(count):
        group = finite[index * len(finite) // count : (index + 1) * len(finite) // count]
        points.append(sum(group) / len(group))
    low, high = min(points), max(points)
    # Equal values are drawn as a line in the middle, not at the bottom.
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    offset = 0.0 if scale else (len(_BARS) - 1) / 2
    return "".join(_BARS[round((point - low) * scale + offset)] for point in points)


def redraws(console: Console) -> bool:
    """Whether this console can redraw a picture in place. Without a terminal, or on one that obeys no
    control sequences (`TERM=dumb`, as in an editor), plain lines are printed instead."""
    return console.is_terminal and not console.is_dumb_terminal


def wrapped(line: Text, width: int, indent: int = 2) -> list[Text]:
    """Return the line as several, broken at spaces; all but the first are indented. A word that is
    longer than a line is broken, too."""
    indent = min(indent, width // 2)
    lines = []
    while line.cell_len > width:
        head, rest = line.divide((_break(line.plain, width, indent),))
        head.rstrip()
        lines.append(head)
        rest = rest[len(rest.plain) - len(rest.plain.lstrip()) :]
        rest.pad_left(indent)
        line = rest
    return [*lines, line]


def _break(text: str, width: int, indent: int) -> int:
    """Return the position at which to break a text wider than `width`; at least `indent` + 1."""
    from rich.cells import cell_len

    position = cells = 0
    while cells + (size := cell_len(text[position])) <= width:
        position, cells = position + 1, cells + size
    # Only the indentation stands before a space there.
    space = text.rfind(" ", 0, position + 1)
    return max(space if text[:space].strip() and space > indent else position, indent + 1)
