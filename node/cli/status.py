"""`distro-node status`, `pause`, `resume` and `leave`: see the node that runs here, and command it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from json import dumps
from pathlib import Path
from typing import Any

import typer

from ..control.terminal import plain, size_text
from .options import DataDirectory, Json, data_directory

# The daemon answers between two rounds at once; on an overloaded machine it may take seconds.
_TIMEOUT_SECONDS = 10.0
_EVENTS_SHOWN = 5
_NAME_WIDTH = 15
_VALUE_WIDTH = 36


def status(data_dir: DataDirectory = None, json: Json = False) -> None:
    """Show what the node that runs here does.

    Asks it, in whatever terminal it was started. For example:

    \b
        distro-node status
    """
    from ..control.command_socket import ask

    answer = ask(data_directory(data_dir).socket, "status", _TIMEOUT_SECONDS)
    if json:
        typer.echo(dumps(answer))
    else:
        _show(answer)


def pause(data_dir: DataDirectory = None, json: Json = False) -> None:
    """Give the line and the computer back for a while.

    The node that runs here says goodbye to its swarm and ends its trainer; it keeps what it has, and
    waits for `distro-node resume`, or for the hours of `join --active` to begin anew. For example:

    \b
        distro-node pause
    """
    _command("pause", data_dir, json, "The node pauses; it has left the swarm within seconds.")


def resume(data_dir: DataDirectory = None, json: Json = False) -> None:
    """Go on after a pause.

    The node fetches what it missed and trains again. Outside the hours of `join --active` it does so
    until they end next. For example:

    \b
        distro-node resume
    """
    _command("resume", data_dir, json, "The node goes on.")


def leave(data_dir: DataDirectory = None, json: Json = False) -> None:
    """Stop the node that runs here, politely.

    It says goodbye to its swarm, and the others go on at once. `distro-node join` comes back later.
    For example:

    \b
        distro-node leave
    """
    _command("leave", data_dir, json, "The node is leaving; it stops within seconds.")


def _command(command: str, data_dir: Path | None, json: bool, said: str) -> None:
    from ..control.command_socket import ask

    answer = ask(data_directory(data_dir).socket, command, _TIMEOUT_SECONDS)
    typer.echo(dumps(answer) if json else said)


def _show(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for name, value, meaning in _lines(facts):
        # Text takes names and messages of others as they are, without markup; soft wrapping leaves
        # ids and addresses in one piece, to be copied.
        line = Text(f"{name:<{_NAME_WIDTH}}", "bold").append(plain(value), "not bold")
        if meaning:
            gap = " " * max(2, _VALUE_WIDTH - len(value))
            line.append(gap + meaning, "not bold dim")
        console.print(line, soft_wrap=True)
    events = (facts.get("events") or [])[-_EVENTS_SHOWN:]
    if events:
        console.print()
    for event in events:
        when = time.strftime("%H:%M:%S", time.localtime(event.get("time") or 0))
        line = f"{when}  round {_text(event.get('round'))}  {_text(event.get('text'))}"
        console.print(Text(plain(line)), soft_wrap=True)


def _lines(facts: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The rows: name, value, what it means."""
    members = facts.get("members") or []
    connected = sum(1 for member in members if member.get("connected") or member.get("me"))
    yield "swarm", f"{_text(facts.get('name'))}  {_text(facts.get('swarm'))}", ""
    yield "peer", _text(facts.get("peer")), "who you are to the others"
    progress = facts.get("progress")
    state = _text(facts.get("state"))
    if progress:
        share = f"{_text(progress.get('done'))}/{_text(progress.get('total'))}"
        state += f": {_text(progress.get('what'))} {share}"
    yield "state", state, _STATES.get(_text(facts.get("state")), "")
    shift = facts.get("shift") or {}
    if shift.get("active"):
        when = f"{_text(shift['active'])}, now until {_text(shift.get('until'))}"
        yield "hours", when, "when it works; " + _SHIFTS[bool(shift.get("by_command"))]
    yield (
        "round",
        f"{_text(facts.get('round'))} ({_text(facts.get('phase'))})",
        "rounds done, and what now",
    )
    yield "members", f"{len(members)}, {connected} in reach", "who trains with you, you included"
    yield "loss", _number(facts.get("loss"), ".4f"), "training loss of the last round, all members"
    heldout = facts.get("heldout")
    if heldout:
        value = f"{_number(heldout[1], '.4f')} (round {heldout[0]})"
        yield "held-out loss", value, "on text nobody trains on: lower is better"
    yield "tokens", _number(facts.get("tokens"), ",d"), "the swarm has trained on"
    yield (
        "your rounds",
        _number(facts.get("rounds_contributed"), ",d"),
        "in which your update counted",
    )
    size = facts.get("update_bytes")
    if size is not None:
        bits = _number(facts.get("bits_per_coefficient"), ".2f")
        yield "update", f"{size_text(size)}, {bits} bits a coefficient", "what you send in a round"
    received = facts.get("received_bytes_per_round")
    if received is not None:
        yield "received", f"{size_text(received)} a round", "updates of the others"
    sent, arrived = facts.get("sent_bytes") or 0, facts.get("received_bytes") or 0
    total = f"{size_text(sent)} up, {size_text(arrived)} down"
    yield "traffic", total, "since the start, all included"
    yield "fingerprint", _text(facts.get("fingerprint")), "of the model; the same at every member"
    yield (
        "device",
        f"{_text(facts.get('device'))}, {_number(facts.get('parameters'), ',d')} parameters",
        "",
    )
    idle = facts.get("trainer_idle")
    if idle is not None:
        yield "trainer waits", f"{_number(idle, '.0%')} of the time", "for the line, or for others"
    reach = facts.get("reach")
    if reach:
        yield "reach", _text(reach.get("advice")), ""
        direct, relayed = reach.get("peers_direct") or 0, reach.get("peers_relayed") or 0
        yield "connections", f"{direct} direct, {relayed} through a relay", "to whomever it is"
    for address in facts.get("addresses") or []:
        yield "address", str(address), "where others reach you"
    if facts.get("metrics"):
        yield "metrics", _text(facts.get("metrics")), "for Prometheus"


_SHIFTS = {False: "it keeps to them", True: "you have told it otherwise for now"}
_STATES = {
    "starting": "the trainer is starting",
    "connecting": "looking for members",
    "syncing": "fetching the model",
    "joining": "asking to be admitted",
    "waiting": "waiting for enough members to start",
    "training": "all is well",
    "paused": "the line and the computer are yours",
    "leaving": "saying goodbye",
}


def _text(value: Any) -> str:
    return "–" if value is None else str(value)


def _number(value: Any, form: str) -> str:
    known = isinstance(value, (int, float)) and math.isfinite(value)
    return format(value, form) if known else "–"
