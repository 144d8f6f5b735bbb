"""`distro-node status`, `pause`, `resume` and `leave`: show the local node, and control it."""

from __future__ import annotations

import time
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..errors import ExitCode, UserError
from .options import DataDirectory, Json, data_directory

if TYPE_CHECKING:
    from ..storage.data_dir import DataDir
    from ..telemetry.status import BootstrapStatus, Status

# The daemon answers immediately between two rounds; on an overloaded machine it may take seconds.
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
    from ..telemetry.status import decode_any_status

    data = data_directory(data_dir)
    try:
        answer = ask(data.socket, "status", _TIMEOUT_SECONDS)
    except UserError as error:
        raise _after_a_run(error, data) from None
    if json:
        typer.echo(dumps(answer))
    else:
        _show(decode_any_status(answer))


def pause(data_dir: DataDirectory = None, json: Json = False) -> None:
    """Give the line and the computer back for a while.

    The node that runs here says goodbye to its swarm and ends its trainer; it keeps what it has, and
    waits for `distro-node resume`, or for the hours of `join --active` to begin anew. For example:

    \b
        distro-node pause
    """
    resume = data_directory(data_dir).command("resume")
    said = f"The node leaves the swarm within seconds, and pauses until you type {resume}."
    _command("pause", data_dir, json, said)


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


def _after_a_run(error: UserError, data: DataDir) -> UserError:
    """Return the error for a node that does not run, with what it did last and what to do next."""
    from ..results.last_run import last_run

    run = last_run(data) if error.code is ExitCode.NOT_RUNNING else None
    if run is None:
        return error
    total = "" if run.last_round is None else f" of {run.last_round:,}"
    problem = f"{error.problem}; it took part in {run.name!r} up to round {run.round:,}{total}"
    if run.is_over:
        export = data.command(f"export {run.swarm} --to my-model")
        return UserError(
            error.code, f"{problem}: the run is over", f"write the model with {export}"
        )
    again = data.command(f"join {run.swarm}")
    return UserError(
        error.code, problem, f"go on with {again}, or with the link that you were given"
    )


def _show(status: Status | BootstrapStatus) -> None:
    from rich.text import Text

    from ..control.status_rows import rows
    from ..control.terminal import stdout_console
    from ..util.sanitize import harmless

    console = stdout_console()
    for row in rows(status):
        # Text accepts no markup; soft wrapping keeps ids and addresses in one piece, so they can be
        # copied.
        value = harmless(row.value)
        line = Text(f"{row.name:<{_NAME_WIDTH}}", "bold").append(value, "not bold")
        if row.note:
            gap = " " * max(2, _VALUE_WIDTH - len(value))
            line.append(gap + harmless(row.note), "not bold dim")
        console.print(line, soft_wrap=True)
    events = getattr(status, "events", ())[-_EVENTS_SHOWN:]
    if events:
        console.print()
    for event in events:
        when = time.strftime("%H:%M:%S", time.localtime(event.time))
        line = f"{when}  round {event.round}  {event.text}"
        console.print(Text(harmless(line)), soft_wrap=True)
