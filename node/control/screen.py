"""The screen of `distro-node join`: what this node does, for people who see it for the first time.

Everything shown comes from the status that `distro-node status --json` prints as well. The screen is
redrawn in place in a terminal; without one, the log reports states and rounds.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable

import trio
from rich.console import Console
from rich.live import Live
from rich.text import Text

from ..telemetry.messages import progress_text, short, state_sentence
from ..telemetry.status import MemberStatus, Status
from ..util.sanitize import harmless
from .status_row import StatusRow
from .status_rows import OTHER_COLOUR, STATE_COLOURS, UNKNOWN, rows
from .terminal import redraws, sparkline, wrapped

_log = logging.getLogger(__name__)

_REDRAW_SECONDS = 0.5
# How long restoring the terminal may take: one that takes no output (Ctrl-S) must not keep the node from
# ending.
_RESTORE_SECONDS = 2.0

_KEPT_LOSSES = 4096
_CURVE_WIDTH = 24
_LABEL_WIDTH = 14
_VALUE_WIDTH = 33
_MAX_EVENTS = 8
# Two lines hold about fifteen members, each with a short id of six characters.
_MEMBER_LINES = 2
# Minimum width for the notes beside the values. Narrower screens, such as a phone's with 40 columns,
# show only the notes of `_NOTED`, each on a line of its own.
_NOTES_WIDTH = 78
# Rows whose note says what helps.
_NOTED = ("reach", "your updates")
_INDENT = 2
# Names of the rows shown: as many as a screen of 24 lines has room for.
_SHOWN = (
    *("round", "members", "loss", "held-out loss", "tokens", "your rounds", "update", "received"),
    *("instead of", "traffic", "energy", "model"),
)
# Rows that give way on a low screen, the first of these first.
_GIVE_WAY = (
    *("instead of", "received", "update", "model", "tokens", "traffic", "energy"),
    *("held-out loss", "your rounds"),
)


async def show_screen(status: Callable[[], Status]) -> None:
    """Show the node on stderr until cancelled, with status from `status`, which must not block.

    Drawing happens in a thread: a slow or stopped terminal does not hold up the node. Returns at once if
    stderr is not a terminal that can be redrawn.
    """
    console = Console(stderr=True, highlight=False)
    if not redraws(console):
        return
    curves = Curves()
    live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def begin() -> None:
        live.start()
        # The cursor stays visible, because a second Ctrl-C ends the process at once, without restoring
        # the terminal.
        console.show_cursor(True)

    def draw(now: Status) -> None:
        live.update(screen_text(now, curves, console.width, console.height), refresh=True)

    try:
        await _in_thread(begin)
        while redraws(console):
            now = status()
            curves.take(now)
            await _in_thread(draw, now)
            await trio.sleep(_REDRAW_SECONDS)
        # The terminal is gone; the node goes on, or leaves politely if told to.
        _log.info("the screen cannot be drawn any more: the terminal is gone")
    except OSError as error:
        _log.info("the screen cannot be drawn any more: %s", error.strerror)
    finally:
        with trio.move_on_after(_RESTORE_SECONDS) as scope, contextlib.suppress(OSError):
            scope.shield = True
            await _in_thread(live.stop)


class Curves:
    """Losses since the screen was first drawn, for the curves."""

    def __init__(self) -> None:
        self.training: deque[float] = deque(maxlen=_KEPT_LOSSES)
        self.heldout: deque[float] = deque(maxlen=_KEPT_LOSSES)
        self._round: int | None = None
        self._heldout_round: int | None = None

    def take(self, status: Status) -> None:
        """Add the new losses of a status."""
        training = status.training
        losses = training.losses
        if losses.training is not None and training.round != self._round:
            self._round = training.round
            self.training.append(losses.training)
        if losses.heldout is not None and losses.heldout_round != self._heldout_round:
            self._heldout_round = losses.heldout_round
            self.heldout.append(losses.heldout)


def screen_text(status: Status, curves: Curves, width: int, height: int) -> Text:
    """Return the screen: at most `height` - 1 lines of `width` characters; the cursor takes the last
    line.

    What is longer than a line continues in the next one. A screen that is too low for everything lacks
    the less important rows.
    """
    top = [*_title(status, width), *_state(status, width), *_progress(status, width)]
    facts = _facts(status, curves, width)
    peers, foot = _members(status, width), _foot(status, width)
    # Without events: three empty lines between the parts.
    room = height - 1 - len(top) - len(peers) - len(foot) - 3
    for name in _GIVE_WAY:
        if sum(map(len, facts.values())) > room:
            facts.pop(name, None)
    rows_shown = [line for lines in facts.values() for line in lines]
    events = _events(status, width, min(room - len(rows_shown), _MAX_EVENTS))
    lines = [*top, Text(), *rows_shown, Text(), *peers, *events, Text(), *foot]
    if len(lines) > height - 1:
        foot = foot[-1:]
        lines = [*lines[: max(0, height - 2)], *foot]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n", no_wrap=True).join(lines)


async def _in_thread(function: Callable[..., object], *arguments: object) -> None:
    """Run a function in a thread that is abandoned if this is cancelled meanwhile."""
    await trio.to_thread.run_sync(
        function,
        *arguments,
        # The stubs of trio that libp2p depends on are older than this parameter's name.
        abandon_on_cancel=True,  # pyright: ignore[reportCallIssue]
    )


def _title(status: Status, width: int) -> list[Text]:
    name = Text(harmless(status.swarm.name) if status.swarm else "…", "bold cyan")
    # Peer ids are random, so the end of one suffices to tell peers apart, as in the log.
    you = Text(f"you are {short(status.node.peer)}", "dim")
    you.append(f", up {_duration(time.time() - status.node.started)}", "dim")
    whole = Text.assemble(("distro-node  ", "bold"), name, "   ", you)
    if whole.cell_len <= width:
        return [whole]
    return [*wrapped(name, width), *wrapped(you, width)]


def _state(status: Status, width: int) -> list[Text]:
    colour = STATE_COLOURS.get(status.state, OTHER_COLOUR)
    line = Text("● ", colour)
    line.append(status.state, f"bold {colour}")
    return wrapped(line.append(f"  {harmless(state_sentence(status))}"), width)


def _progress(status: Status, width: int) -> list[Text]:
    progress = status.progress
    if progress is None:
        return []
    length = max(10, min(40, width - 40))
    line = Text("  ")
    if progress.total:
        share = min(1.0, max(0.0, progress.done / progress.total))
        filled = int(share * length)
        line.append("━" * filled, "green").append("━" * (length - filled), "bright_black")
        line.append(f" {share:4.0%} ")
    else:
        # How far it is is unknown: a piece moves along the bar with what is done.
        before = progress.done % (length - 1)
        line.append("━" * before, "bright_black").append("━━", "green")
        line.append("━" * (length - 2 - before), "bright_black").append("  ")
    what = progress.what if progress.total else progress_text(progress)
    return wrapped(line.append(harmless(what), "dim"), width)


def _facts(status: Status, curves: Curves, width: int) -> dict[str, list[Text]]:
    """Return the lines of each row, by its name."""
    shown = {row.name: row for row in rows(status)}
    names = list(_SHOWN)
    if status.reach is not None and status.reach.verdict == "unreachable":
        names.insert(1, "reach")
    # These rows exist only in swarms with audits, `your updates` only while the updates do not count.
    names += [name for name in ("your audits", "your updates") if name in shown]
    facts = {}
    for name in names:
        row = shown.get(name, StatusRow(name, UNKNOWN))
        if name in ("loss", "held-out loss"):
            values = curves.training if name == "loss" else curves.heldout
            number = row.value.partition(" ")[0]
            room = max(0, min(_CURVE_WIDTH, width - _LABEL_WIDTH - len(number) - 2))
            row = StatusRow(name, f"{number}  {sparkline(values, room)}".rstrip(), row.note)
        facts[name] = _row(row, width)
    return facts


def _row(row: StatusRow, width: int) -> list[Text]:
    line = Text(row.name.ljust(_LABEL_WIDTH), "bold").append(harmless(row.value), "not bold")
    if not row.note or (width < _NOTES_WIDTH and row.name not in _NOTED):
        return wrapped(line, width, _LABEL_WIDTH)
    note = Text(harmless(row.note), "dim")
    gap = " " * max(2, _LABEL_WIDTH + _VALUE_WIDTH + 2 - line.cell_len)
    beside = Text.assemble(line, gap, note)
    if beside.cell_len <= width:
        return [beside]
    return [
        *wrapped(line, width, _LABEL_WIDTH),
        *wrapped(Text(" " * _INDENT).append_text(note), width),
    ]


def _foot(status: Status, width: int) -> list[Text]:
    page, leave = status.node.dashboard, "Ctrl-C leaves politely; nothing is lost"
    if page is None:
        whole = Text(f"{leave}, come back whenever you like.", "dim")
        return [whole if whole.cell_len <= width else Text(f"{leave}.", "dim")]
    address = f"Page: {harmless(page)}"
    whole = Text(f"{address}  {leave}.", "dim")
    if whole.cell_len <= width:
        return [whole]
    return [*wrapped(Text(address, "dim"), width, 0), Text(f"{leave}.", "dim")]


def _members(status: Status, width: int) -> list[Text]:
    members = (status.swarm.members if status.swarm else None) or ()
    indent = _LABEL_WIDTH if width >= _NOTES_WIDTH else _INDENT
    lines: list[Text] = []
    line = Text("peers".ljust(_LABEL_WIDTH), "bold")
    for shown, member in enumerate(members):
        entry = _member(member)
        more = Text(f" … {len(members) - shown} more", "dim")
        # The last line keeps room for the number of members after it.
        last = len(lines) == _MEMBER_LINES - 1
        kept = more.cell_len if last and shown < len(members) - 1 else 0
        if shown and line.cell_len + entry.cell_len + 3 + kept > width:
            if last:
                lines.append(line.append_text(more))
                return [part for each in lines for part in wrapped(each, width)]
            lines.append(line)
            line = Text(" " * indent)
        elif shown:
            line.append(" · ", "dim")
        line.append_text(entry)
    if not members:
        line.append("none yet", "dim")
    return [part for each in (*lines, line) for part in wrapped(each, width)]


def _member(member: MemberStatus) -> Text:
    name = short(harmless(member.peer))
    share = f" {member.share:.0%}" if member.share is not None else ""
    why = f" ({harmless(member.share_reason)})" if member.share_reason is not None else ""
    if member.me:
        return Text(f"{name} (you){share}{why}", "cyan")
    if member.connected:
        return Text(f"{name}{share}{why}", "green")
    heard = member.last_message_seconds
    since = f"heard {_duration(heard)} ago" if heard is not None else "not heard of"
    return Text(f"{name} ({since})", "yellow")


def _events(status: Status, width: int, count: int) -> list[Text]:
    """Return the newest events after an empty line, in at most `count` lines with it."""
    lines: list[Text] = []
    for event in reversed(status.events):
        when = time.strftime("%H:%M:%S", time.localtime(event.time))
        line = Text(f"{when}   ", "dim")
        line.append(f"round {event.round}: ", "dim")
        shown = wrapped(line.append(harmless(event.text)), width)
        if len(shown) + len(lines) >= count:
            break
        lines = [*shown, *lines]
    return [Text(), *lines] if lines else []


def _duration(seconds: float) -> str:
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
