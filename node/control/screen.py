"""The screen of `distro-node join`: what this node does, told to somebody who has just come.

Everything shown comes from the status that `distro-node status --json` prints, too; any part of it
may be missing. A terminal gets a picture that is redrawn in place, anything else a line a round.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trio
from rich.console import Console
from rich.live import Live
from rich.text import Text

from .terminal import plain, size_text, sparkline

Status = Mapping[str, Any]

_REDRAW_SECONDS = 0.5
# A terminal that takes no output (Ctrl-S) must not keep the node from ending.
_RESTORE_SECONDS = 2.0

_KEPT_LOSSES = 4096
_CURVE_WIDTH = 24
_LABEL_WIDTH = 11
_MAX_EVENTS = 8
# Short ids of six characters: two lines hold some fifteen.
_MEMBER_LINES = 2

_DENSE_BYTES = 2
"""Bytes a parameter that a dense all-reduce in bfloat16 moves, as the DisTrO report counts it."""

_MEANINGS = {
    "starting": "the trainer process starts; PyTorch takes some seconds to load",
    "connecting": "looking for members of the swarm",
    "syncing": "fetching the model as the swarm has it now; training follows",
    "joining": "asking the members to be admitted; the next round's record says yes",
    "waiting": "the swarm starts once enough members are there",
    "paused": "the line and the computer are yours; `distro-node resume` goes on",
    "leaving": "saying goodbye, so that nobody waits for you",
}
_PHASES = {
    "compute": "your {device} computes round {round}'s share",
    "transfer": "round {round}'s updates travel between the members",
    "agree": "the members agree on which updates of round {round} count",
    "apply": "round {round}'s step goes into the model",
}


async def show_screen(status: Callable[[], dict[str, Any]]) -> None:
    """Show the node on stderr until cancelled, asking `status` (which must not block) for it.

    Drawing happens in a thread: a terminal that is slow or stopped does not hold up the node.
    """
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        await _print_lines(status)
        return
    curves = Curves()
    live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def begin() -> None:
        live.start()
        # A second Ctrl-C ends the process at once, and must not leave a terminal without a cursor.
        console.show_cursor(True)

    def draw(facts: Status) -> None:
        live.update(screen_text(facts, curves, console.width, console.height), refresh=True)

    try:
        await _in_thread(begin)
        while True:
            facts = status()
            curves.take(facts)
            await _in_thread(draw, facts)
            await trio.sleep(_REDRAW_SECONDS)
    finally:
        with trio.move_on_after(_RESTORE_SECONDS) as scope:
            scope.shield = True
            await _in_thread(live.stop)


class Curves:
    """The losses seen since the screen began, for the curves."""

    def __init__(self) -> None:
        self.training: deque[float] = deque(maxlen=_KEPT_LOSSES)
        self.heldout: deque[float] = deque(maxlen=_KEPT_LOSSES)
        self._round: int | None = None
        self._heldout_round: int | None = None

    def take(self, status: Status) -> None:
        """Note what is new in a status."""
        loss, round_ = status.get("loss"), status.get("round")
        if isinstance(loss, (int, float)) and round_ != self._round:
            self._round = round_
            self.training.append(loss)
        heldout = status.get("heldout")
        if heldout and heldout[1] is not None and heldout[0] != self._heldout_round:
            self._heldout_round = heldout[0]
            self.heldout.append(heldout[1])


def screen_text(status: Status, curves: Curves, width: int, height: int) -> Text:
    """The whole screen, in at most `height` - 1 lines of `width` characters (the cursor has one)."""
    top = [_title(status), _state(status), *_progress(status, width), Text()]
    middle = [*_facts(status, curves), Text(), *_members(status, width)]
    foot = Text("Ctrl-C leaves politely; nothing is lost, come back whenever you like.", "dim")
    room = height - 1 - len(top) - len(middle) - 2
    lines = [*top, *middle, *_events(status, min(room, _MAX_EVENTS)), Text(), foot]
    if len(lines) > height - 1:
        lines = [*lines[: max(0, height - 2)], foot]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n", no_wrap=True).join(lines)


def state_sentence(status: Status) -> str:
    """What the state means, in plain words."""
    state = status.get("state")
    if state != "training":
        return _MEANINGS.get(str(state), "")
    device = "processor" if str(status.get("device") or "").startswith("cpu") else "GPU"
    round_ = _number(status.get("round"), 0) + 1
    sentence = _PHASES.get(str(status.get("phase")), "round {round} is about to begin")
    return sentence.format(device=device, round=int(round_))


def dense_bytes(status: Status) -> float | None:
    """What one round of a dense all-reduce in bfloat16 would have brought to this member."""
    parameters = status.get("parameters")
    members = len(status.get("members") or [])
    if not parameters or members < 2:
        return None
    return _DENSE_BYTES * parameters * (members - 1)


def progress_lines(before: Status | None, now: Status) -> list[str]:
    """What to print where there is no terminal: new states and rounds, a line each."""
    lines = []
    state = now.get("state")
    if before is None or state != before.get("state"):
        sentence = "the swarm trains, and you with it" if state == "training" else None
        lines.append(f"{plain(state)}: {sentence or state_sentence(now) or 'no more is known'}")
    round_ = now.get("round")
    if before is not None and round_ != before.get("round") and now.get("loss") is not None:
        members = now.get("members") or []
        parts = [f"round {round_}", f"loss {now['loss']:.4f}", f"{len(members)} members"]
        heldout = now.get("heldout")
        if heldout and heldout[1] is not None:
            parts.insert(2, f"held-out {heldout[1]:.4f} (round {heldout[0]})")
        received = now.get("received_bytes_per_round")
        if received is not None:
            parts.append(f"{size_text(received)} received a round")
        lines.append("  ".join(parts))
    return lines


async def _in_thread(function: Callable[..., object], *arguments: object) -> None:
    """Run it in a thread that is left to itself if this is cancelled meanwhile."""
    await trio.to_thread.run_sync(
        function,
        *arguments,
        # The stubs that libp2p brings along know trio before this was called so.
        abandon_on_cancel=True,  # pyright: ignore[reportCallIssue]
    )


async def _print_lines(status: Callable[[], dict[str, Any]]) -> None:
    before: Status | None = None

    def write(lines: Sequence[str]) -> None:
        for line in lines:
            print(line, file=sys.stderr, flush=True)

    while True:
        now = status()
        if lines := progress_lines(before, now):
            await _in_thread(write, lines)
        before = now
        await trio.sleep(_REDRAW_SECONDS)


def _title(status: Status) -> Text:
    line = Text("distro-node  ", "bold")
    line.append(plain(status.get("name") or "…"), "bold cyan")
    # Ids are random; the end of one tells peers apart, as in the log.
    line.append(f"   you are {_short(status.get('peer'))}", "dim")
    started = status.get("started")
    if started is not None:
        line.append(f", up {_duration(time.time() - started)}", "dim")
    return line


def _state(status: Status) -> Text:
    state = str(status.get("state") or "starting")
    colour = {"training": "green", "paused": "blue", "leaving": "magenta"}.get(state, "yellow")
    line = Text("● ", colour)
    line.append(state, f"bold {colour}")
    line.append(f"  {state_sentence(status)}")
    return line


def _progress(status: Status, width: int) -> list[Text]:
    progress = status.get("progress")
    if not progress:
        return []
    done, total = _number(progress.get("done"), 0), _number(progress.get("total"), 0)
    share = min(1.0, max(0.0, done / total)) if total > 0 else 0.0
    length = max(10, min(40, width - 40))
    filled = int(share * length)
    line = Text("  ")
    line.append("━" * filled, "green").append("━" * (length - filled), "bright_black")
    line.append(f" {share:4.0%} ").append(plain(progress.get("what") or ""), "dim")
    return [line]


def _facts(status: Status, curves: Curves) -> list[Text]:
    members = status.get("members") or []
    reach = sum(1 for member in members if member.get("connected") or member.get("me"))
    heldout = status.get("heldout")
    update, received = status.get("update_bytes"), status.get("received_bytes_per_round")
    dense = dense_bytes(status)
    rows = [
        ("round", f"{_whole(status.get('round'))} done", "each a step of the shared model"),
        ("members", f"{len(members)}, {reach} in reach", "who trains, you included"),
        (
            "loss",
            _curve(status.get("loss"), curves.training),
            "on training text, mean of all",
        ),
        (
            "held-out",
            _curve(heldout[1] if heldout else None, curves.heldout),
            "on unseen text: lower is better",
        ),
        ("tokens", _whole(status.get("tokens")), "read by the swarm since you came"),
        (
            "update",
            _bytes(update) + _bits(status.get("bits_per_coefficient")),
            "what you send to all in a round",
        ),
        ("received", _bytes(received), "a round: the others' updates"),
        ("instead of", _bytes(dense) + _factor(dense, received), "that a dense all-reduce moves"),
        ("you", _contribution(status), "rounds in which your work counted"),
        (
            "traffic",
            f"{_bytes(status.get('sent_bytes'))} up, {_bytes(status.get('received_bytes'))} down",
            "all of it, since the start",
        ),
        (
            "model",
            f"{_whole(status.get('parameters'))} parameters on {plain(status.get('device') or '–')}",
            f"fingerprint {plain(status.get('fingerprint') or '–')}",
        ),
    ]
    reach = status.get("reach") or {}
    if reach.get("verdict") == "unreachable":
        way = "a relay carries you" if reach.get("relays") else "no relay, outgoing calls alone"
        rows.insert(2, ("reach", way, f"to be called: open TCP {_plain_port(reach.get('port'))}"))
    return [_row(*row) for row in rows]


def _plain_port(port: Any) -> str:
    return str(port) if isinstance(port, int) else "…"


def _row(label: str, value: str, note: str) -> Text:
    line = Text(label.ljust(_LABEL_WIDTH), "bold")
    line.append(value.ljust(33))
    line.append("  " + note, "dim")
    return line


def _members(status: Status, width: int) -> list[Text]:
    members = status.get("members") or []
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


def _member(member: Status) -> Text:
    name = _short(member.get("peer"))
    if member.get("me"):
        return Text(f"{name} (you)", "cyan")
    heard = member.get("heard_seconds")
    if member.get("connected"):
        return Text(name, "green")
    since = f"heard {_duration(heard)} ago" if heard is not None else "not heard of"
    return Text(f"{name} ({since})", "yellow")


def _events(status: Status, count: int) -> list[Text]:
    events = list(status.get("events") or [])[-count:] if count > 0 else []
    lines = []
    for event in events:
        when = time.strftime("%H:%M:%S", time.localtime(event.get("time") or 0))
        line = Text(f"{when}   ", "dim")
        line.append(f"round {event.get('round')}: ", "dim")
        line.append(plain(event.get("text") or event.get("kind") or ""))
        lines.append(line)
    return [Text(), *lines[1:]] if len(lines) == count else [Text(), *lines] if lines else []


def _contribution(status: Status) -> str:
    counted = _whole(status.get("rounds_contributed"))
    first = status.get("first_round")
    return counted if first is None else f"{counted} since round {first}"


def _curve(value: Any, values: Sequence[float]) -> str:
    number = f"{value:.4f}" if isinstance(value, (int, float)) else "–"
    return f"{number}  {sparkline(values, _CURVE_WIDTH)}"


def _factor(dense: float | None, received: Any) -> str:
    return f", {dense / received:,.0f} × as much" if dense and received else ""


def _bits(bits: Any) -> str:
    return f", {bits:.2f} bits a number" if bits is not None else ""


def _bytes(count: Any) -> str:
    return "–" if count is None else size_text(count)


def _whole(number: Any) -> str:
    return "–" if number is None else f"{number:,}"


def _number(value: Any, default: float) -> float:
    return value if isinstance(value, (int, float)) else default


def _short(peer: Any) -> str:
    return plain(peer)[-6:] if peer else "…"


def _duration(seconds: float) -> str:
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
