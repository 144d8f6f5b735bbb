"""`distro-node service`: run a node as a service of the system."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from enum import StrEnum
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ExitCode, UserError
from ..service.manager import ServiceManager, this_manager
from ..service.units import Service, arguments_problem
from ..settings.values import NamedSwarm, parse_join_target, parse_target
from .command_settings import ServiceOptions
from .options import Json
from .settings_parameters import with_settings

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_COMMANDS = ("join", "bootstrap")
# A system service cannot access home directories, where a user's own programs are.
_HOMES = ("/home", "/root", "/run/user")


class Action(StrEnum):
    """An action on the service."""

    INSTALL = "install"
    REMOVE = "remove"
    STATUS = "status"


@with_settings
def service(
    ctx: typer.Context,
    action: Annotated[Action, typer.Argument(help="The action.")],
    options: ServiceOptions,
    json: Json = False,
) -> None:
    """Run a node as a service of the system.

    systemd (Linux) or launchd (macOS) starts it at boot or when you log in, restarts it after a
    crash, and keeps its log. `remove` stops and removes the service; the node's data stays. For
    example:

    \b
        distro-node service install -- join 'distro:swarm-…?bootstrap=…' --max-upload 5Mbit
        distro-node service status
    """
    name = options.name
    if not _NAME.fullmatch(name):
        raise UserError(
            ExitCode.USAGE,
            f"{name!r} is not a valid service name",
            "use up to 63 lower-case letters, digits and hyphens with --name",
        )
    if action is not Action.INSTALL and options.command:
        raise UserError(
            ExitCode.USAGE, f"{action} takes no command", "give the command to `install` only"
        )
    if action is Action.INSTALL:
        _install(ctx, _service(ctx, options), options, json)
        return
    manager = this_manager(system=options.system)
    if action is Action.REMOVE:
        path = manager.remove(name, force=options.force)
        typer.echo(
            dumps({"file": str(path)}) if json else f"The service is stopped; removed {path}."
        )
        return
    found = manager.status(name)
    if json:
        typer.echo(dumps(asdict(found)))
    elif not found.installed:
        typer.echo(f"There is no service {name!r}: {found.file} does not exist.")
    else:
        edited = ", which was edited since" if found.edited else ""
        typer.echo(f"The service is {found.state}; its file is {found.file}{edited}.")


def _install(ctx: typer.Context, what: Service, options: ServiceOptions, json: bool) -> None:
    if options.show:
        typer.echo(_manager_to_show(what).content(what), nl=False)
        return
    manager = this_manager(system=what.system)
    path = manager.install(what, force=options.force)
    if json:
        typer.echo(dumps({"file": str(path)}))
        return
    typer.echo(f"The service is running; its file is {path}.")
    if manager.kind == "systemd":
        user = "" if what.system else "--user "
        typer.echo(f"Its log: journalctl {user}--unit {what.name}")
        if not what.system:
            typer.echo("It runs while you are logged in. To run it always: loginctl enable-linger")
    else:
        typer.echo(f"Its log: {manager.logs / path.with_suffix('.log').name}")


def _manager_to_show(what: Service) -> ServiceManager:
    """Return the manager whose file is shown: this computer's; if the computer has no supported one,
    a systemd manager that only makes the text."""
    try:
        return this_manager(system=what.system)
    except UserError as error:
        if error.code is not ExitCode.SERVICE:
            raise
        folder = Path()
        return ServiceManager(
            kind="systemd", system=what.system, folder=folder, logs=folder, run=_unexpected_run
        )


def _unexpected_run(_: Any) -> Any:
    raise AssertionError("no command is run to show a unit")


def _service(ctx: typer.Context, options: ServiceOptions) -> Service:
    """Return the service that runs a command, after checking the command. Raises `UserError`, or the
    usage errors of Click."""
    arguments, name = list(options.command), options.name
    if not arguments or arguments[0] not in _COMMANDS:
        raise UserError(
            ExitCode.USAGE,
            "the service needs a command, either `join` or `bootstrap`",
            "give it after two hyphens: distro-node service install -- join LINK",
        )
    problem = arguments_problem(arguments)
    if problem is not None:
        raise UserError(ExitCode.USAGE, problem, "write the command without it")
    given = _parsed(ctx, arguments)
    if arguments[0] == "join":
        named = isinstance(parse_join_target(given["target"]), NamedSwarm)
        if named and not given.get("bootstrap"):
            # Without a list to look the name up in, only a swarm-id or a link will do.
            parse_target(given["target"])
        if not {"--wait", "--no-wait"} & set(arguments):
            # At boot the network may not be up yet; a service can wait.
            arguments = [*arguments, "--wait"]
    if options.system:
        if given.get("data_dir") is not None:
            raise UserError(
                ExitCode.USAGE,
                "a service of the whole system keeps its data in a directory of its own",
                f"leave out `--data-dir` after the `--`: it is /var/lib/{name}",
            )
        if _program()[0].startswith(tuple(f"{home}/" for home in _HOMES)):
            raise UserError(
                ExitCode.SERVICE,
                f"{_program()[0]} is in a home directory, which a system service cannot access",
                "install distro-node elsewhere, for example into an environment in /opt, or leave out "
                "--system",
            )
    return Service(
        name=name,
        command=arguments[0],
        command_line=(*_program(), *arguments),
        system=options.system,
    )


def _parsed(ctx: typer.Context, arguments: list[str]) -> dict[str, Any]:
    """Return the options of the command, parsed as the program itself would."""
    group: Any = ctx.find_root().command
    command = group.get_command(ctx, arguments[0])
    with command.make_context(arguments[0], arguments[1:], parent=ctx.find_root()) as inner:
        return dict(inner.params)


def _program() -> tuple[str, ...]:
    """Return the command that starts this program again."""
    script = Path(sys.executable).parent / "distro-node"
    if script.is_file():
        return (str(script),)
    return (sys.executable, "-m", "distro_node.node")
