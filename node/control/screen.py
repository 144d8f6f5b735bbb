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

from ..telemetry.messages import short, state_sentence
from ..telemetry.status import MemberStatus, Status
from ..util.sanitize import harmless
from .status_rows import OTHER_COLOUR, STATE_COLOURS, UNKNOWN, StatusRow, rows
from .terminal import redraws, sparkline

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
# Names of the rows shown: as many as a screen of 24 lines has room for.
_SHOWN = (
    *("round", "members", "loss", "held-out loss", "tokens", "your rounds", "update", "received"),
    *("instead of", "traffic", "energy", "model"),
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
        while True:
            now = status()
            curves.take(now)
            await _in_thread(draw, now)
            await trio.sleep(_REDRAW_SECONDS)
    except OSError as error:
        # The terminal is gone; the node goes on, or leaves politely if told to.
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
    line."""
    top = [_title(status), _state(status), *_progress(status, width), Text()]
    middle = [*_facts(status, curves), Text(), *_members(status, width)]
    page = status.node.dashboard
    foot = Text("Ctrl-C leaves politely; nothing is lost, come back whenever you like.", "dim")
    if page is not None:
        foot = Text(f"Page: {harmless(page)}  Ctrl-C leaves politely; nothing is lost.", "dim")
    room = height - 1 - len(top) - len(middle) - 2
    lines = [*top, *middle, *_events(status, min(room, _MAX_EVENTS)), Text(), foot]
    if len(lines) > height - 1:
        lines = [*lines[: max(0, height - 2)], foot]
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


def _title(status: Status) -> Text:
    line = Text("distro-node  ", "bold")
    line.append(harmless(status.swarm.name) if status.swarm else "…", "bold cyan")
    # Peer ids are random, so the end of one suffices to tell peers apart, as in the log.
    line.append(f"   you are {short(status.node.peer)}", "dim")
    return line.append(f", up {_duration(time.time() - status.node.started)}", "dim")


def _state(status: Status) -> Text:
    colour = STATE_COLOURS.get(status.state, OTHER_COLOUR)
    line = Text("● ", colour)
    line.append(status.state, f"bold {colour}")
    return line.append(f"  {harmless(state_sentence(status))}")


def _progress(status: Status, width: int) -> list[Text]:
    progress = status.progress
    if progress is None:
        return []
    share = min(1.0, max(0.0, progress.done / progress.total)) if progress.total else None
    length = max(10, min(40, width - 40))
    filled = int((share or 0.0) * length)
    line = Text("  ")
    line.append("━" * filled, "green").append("━" * (length - filled), "bright_black")
    line.append("      " if share is None else f" {share:4.0%} ")
    return [line.append(harmless(progress.what), "dim")]


def _facts(status: Status, curves: Curves) -> list[Text]:
    shown = {row.name: row for row in rows(status)}
    names = list(_SHOWN)
    if status.reach is not None and status.reach.verdict == "unreachable":
        names.insert(1, "reach")
    # These rows exist only in swarms with audits, `your updates` only while the updates do not count.
    names += [name for name in ("your audits", "your updates") if name in shown]
    lines = []
    for name in names:
        row = shown.get(name, StatusRow(name, UNKNOWN))
        if name in ("loss", "held-out loss"):
            values = curves.training if name == "loss" else curves.heldout
            number = row.value.partition(" ")[0]
            row = StatusRow(name, f"{number}  {sparkline(values, _CURVE_WIDTH)}", row.note)
        lines.append(_row(row))
    return lines


def _row(row: StatusRow) -> Text:
    line = Text(row.name.ljust(_LABEL_WIDTH), "bold")
    line.append(harmless(row.value).ljust(_VALUE_WIDTH))
    return line.append("  " + harmless(row.note), "dim") if row.note else line


def _members(status: Status, width: int) -> list[Text]:
    members = (status.swarm.members if status.swarm else None) or ()
    lines: list[Text] = []
    line = Text("peers".ljust(_LABEL_WIDTH), "bold")
    for shown, member in enumerate(members):
        entry = _member(member)
        if line.cell_len + entry.cell_len + 3 > width and shown:
            lines.append(line)
            line = Text(" " * _LABEL_WIDTH)
            if len(lines) == _MEMBER_LINES:
                lines[-1].append(f" … {len(members) - shown} more", "dim")
                return lines
        elif shown:
            line.append(" · ", "dim")
        line.append_text(entry)
    return [*lines, line] if members else [line.append("none yet", "dim")]


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


def _events(status: Status, count: int) -> list[Text]:
    lines = []
    for event in status.events[-count:] if count > 0 else ():
        when = time.strftime("%H:%M:%S", time.localtime(event.time))
        line = Text(f"{when}   ", "dim")
        line.append(f"round {event.round}: ", "dim")
        lines.append(line.append(harmless(event.text)))
    return [Text(), *lines[1:]] if len(lines) == count else [Text(), *lines] if lines else []


def _duration(seconds: float) -> str:
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
