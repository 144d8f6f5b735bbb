"""Display of the demo while it runs and at its end.

On a terminal a picture is redrawn in place, otherwise plain lines are printed; both go to stderr.
The results go to stdout.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..control.status_rows import OTHER_COLOUR, STATE_COLOURS, UNKNOWN
from ..control.terminal import redraws, sparkline, stdout_console, wrapped
from ..telemetry.status import LineStatus
from ..util.sanitize import UNREADABLE, harmless, harmless_piece
from ..util.size_text import size_text
from .outcome import DemoPromise, reduction

_CURVE_WIDTH = 48
_CURVE_START = 23
# Widths of the cells of a node's row. A narrower screen leaves out columns of `_GIVE_WAY`, the first of
# these first.
_COLUMNS = {
    "name": 10,
    "peer": 8,
    "state": 12,
    "round": 6,
    "counted": 9,
    "sent": 10,
    "received": 10,
}
_GIVE_WAY = ("peer", "received", "sent", "counted")
_SAMPLE_LINES = 16
# Rounds between two lines about the loss if there is no terminal.
_LINE_ROUNDS = 5


@dataclass(frozen=True, kw_only=True)
class NodeRow:
    """One node on the demo's screen."""

    name: str
    peer: str | None
    state: str
    round: int
    contributed: int
    """Number of rounds in which its update counted."""
    line: LineStatus | None
    """None before its first status is known."""


@dataclass(frozen=True, kw_only=True)
class DemoPicture:
    """Everything that the demo's screen shows."""

    doing: str
    seconds: float
    round: int
    rounds: int
    training: Sequence[float]
    heldout: Sequence[tuple[int, float]]
    bootstrap: str
    nodes: Sequence[NodeRow]
    happened: Sequence[tuple[float, str]]
    """Events: seconds since the start of the demo, and a sentence."""


class View(AbstractContextManager["View"]):
    """Shows pictures, one after the other."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._live: Live | None = None
        self._shown = 0
        self._doing = ""
        self._round = 0

    def __enter__(self) -> View:
        if redraws(self._console):
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, picture: DemoPicture) -> None:
        """Draw a picture, or print what is new in it."""
        if self._live is not None:
            text = view_text(picture, self._console.width, self._console.height)
            self._live.update(text, refresh=True)
        else:
            for line in self._news(picture):
                print(line, file=sys.stderr, flush=True)

    def _news(self, picture: DemoPicture) -> list[str]:
        lines = []
        if picture.doing != self._doing:
            self._doing = picture.doing
            lines.append(f"{picture.seconds:4.0f} s  {picture.doing}")
        for seconds, what in picture.happened[self._shown :]:
            lines.append(f"{seconds:4.0f} s  {what}")
        self._shown = len(picture.happened)
        last = picture.round == picture.rounds > self._round
        if last or picture.round // _LINE_ROUNDS > self._round // _LINE_ROUNDS:
            self._round = picture.round
            line = f"{picture.seconds:4.0f} s  round {picture.round}/{picture.rounds}"
            if picture.training:
                line += f": training loss {picture.training[-1]:.3f}"
            if picture.heldout:
                line += ", held-out {1:.3f} (round {0})".format(*picture.heldout[-1])
            lines.append(line)
        return [harmless(line) for line in lines]


def view_text(picture: DemoPicture, width: int, height: int) -> Text:
    """Return the picture in at most `height` - 1 lines of `width` characters; the oldest events are
    dropped first."""
    top = [
        Text.assemble(("distro-node demo", "bold"), f"   {picture.seconds:.0f} s"),
        *wrapped(Text(f"now: {picture.doing}", "yellow"), width),
        Text(),
        _bar(picture, width),
        _curve("training", picture.training, "blue", width),
        _curve("held-out", [loss for _, loss in picture.heldout], "red", width),
        Text(),
    ]
    columns = _columns(width)
    table = [
        _cells({name: name if name != "name" else "" for name in columns}, columns, "dim"),
        *(_node(row, columns) for row in picture.nodes),
        *wrapped(
            Text.assemble(f"{'bootstrap':18}", (picture.bootstrap, _style(picture.bootstrap))),
            width,
        ),
        Text(),
    ]
    room = max(0, height - 1 - len(top) - len(table))
    happened: list[Text] = []
    for seconds, what in reversed(picture.happened):
        event = wrapped(Text.assemble((f"{seconds:4.0f} s  ", "dim"), harmless(what)), width, 8)
        if len(happened) + len(event) > room:
            break
        happened = [*event, *happened]
    lines = [*top, *table, *happened][: height - 1]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n", no_wrap=True).join(lines)


def print_results(
    summary: Mapping[str, Any],
    checks: Sequence[DemoPromise],
    files: Mapping[str, Path],
    sample: str | None = None,
) -> None:
    """Print the results to stdout: nodes, promises, figures, the text that the model wrote, and
    files."""
    console = stdout_console()
    nodes = Table("node", "peer", "first", "last", "counted", "fingerprint", "end")
    for node in summary["nodes"]:
        keys = ("first_round", "last_round", "rounds_contributed", "final_fingerprint", "exit")
        cells = [UNKNOWN if node[key] is None else str(node[key]) for key in keys]
        texts = [Text(harmless(each)) for each in (node["name"], node["peer_id"][-6:], *cells)]
        nodes.add_row(*texts)
    console.print(nodes)
    results = Table("", "promise", "seen")
    for check in checks:
        mark = Text("✓", "bold green") if check.passed else Text("✗", "bold red")
        # The cells are `Text` objects, because a table interprets brackets in strings as markup.
        results.add_row(mark, Text(check.what), Text(harmless(check.seen)))
    console.print(results)
    for line in _figures(summary):
        console.print(line, soft_wrap=True)
    if sample is not None:
        console.print("\nWhat the model writes now:\n")
        shown = harmless_piece(sample)
        lines = shown.splitlines()[:_SAMPLE_LINES]
        console.print(Text("\n".join(f"    {line}" for line in lines), "cyan"))
        if UNREADABLE in shown:
            console.print(f"({UNREADABLE} stands for bytes that are no text.)")
    console.print()
    for what, path in files.items():
        console.print(f"{what:8} {path}", soft_wrap=True, markup=False)


def _figures(summary: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{summary['rounds']} rounds of a model of {summary['parameters']:,} parameters "
        f"in {summary['seconds']:.0f} s, start and end included."
    ]
    factor = reduction(summary)
    if factor is not None and summary["update_bytes"] is not None:
        lines.append(
            f"An update has {size_text(summary['update_bytes'])} "
            f"({summary['bits_per_coefficient']:.2f} bits a coefficient). With "
            f"{summary['members']} members each receives "
            f"{size_text(summary['received_bytes_per_round'])} a round,"
        )
        lines.append(
            f"where a dense all-reduce in bfloat16 moves "
            f"{size_text(summary['dense_bytes_per_round'])}: {factor:,.0f} × as much."
        )
    return lines


def _curve_width(width: int) -> int:
    return max(1, min(_CURVE_WIDTH, width - _CURVE_START))


def _bar(picture: DemoPicture, width: int) -> Text:
    length = _curve_width(width)
    filled = length * picture.round // picture.rounds
    line = Text(f"{'round':10}{picture.round:>4} of {picture.rounds:<4} ")
    line.append("━" * filled, "green")
    return line.append("━" * (length - filled), "bright_black")


def _curve(label: str, values: Sequence[float], colour: str, width: int) -> Text:
    value = f"{values[-1]:.4f}" if values else UNKNOWN
    line = Text(f"{label:10}{value:13}")
    return line.append(sparkline(values, _curve_width(width)), colour)


def _columns(width: int) -> dict[str, int]:
    columns = dict(_COLUMNS)
    for name in _GIVE_WAY:
        if sum(columns.values()) > width:
            del columns[name]
    return columns


def _node(row: NodeRow, columns: Mapping[str, int]) -> Text:
    sent = UNKNOWN if row.line is None else size_text(row.line.sent_bytes)
    received = UNKNOWN if row.line is None else size_text(row.line.received_bytes)
    cells = {
        "name": row.name,
        "peer": (row.peer or "")[-6:],
        "state": harmless(row.state),
        "round": str(row.round),
        "counted": str(row.contributed),
        "sent": sent,
        "received": received,
    }
    return _cells(cells, columns, _style(row.state))


def _cells(cells: Mapping[str, str], columns: Mapping[str, int], style: str) -> Text:
    """Return a row of the table; `style` is that of the state, and of all cells in the heading."""
    line = Text()
    for name, width in columns.items():
        words = name in ("name", "peer", "state")
        text = f"{cells[name]:{'<' if words else '>'}{width}}"
        line.append(text, style if name == "state" or style == "dim" else "")
    return line


def _style(state: str) -> str:
    return STATE_COLOURS.get(state, OTHER_COLOUR)
