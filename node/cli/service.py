"""`distro-node service`: run a node as a service of the system."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from ..config import (
    ENVIRONMENT_PREFIX,
    command_options,
    default_config_file,
    load_defaults,
)
from ..errors import ExitCode, UserError
from ..service.manager import ServiceManager, this_manager
from ..service.units import Service, arguments_problem
from ..settings.components import LineSettings
from ..settings.setting import Setting, all_settings, build
from ..settings.tree import BootstrapOptions, JoinSettings
from ..settings.values import (
    NamedSwarm,
    absolute_path,
    default_data_dir,
    parse_mirror,
    parse_target,
    without_tilde,
)
from . import bootstrap, join
from .command_settings import ServiceOptions
from .options import Json, read_passphrase, refuse_ignored
from .settings_parameters import with_settings

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_COMMANDS: dict[str, tuple[type, Callable[[typer.Context, Any], None]]] = {
    "join": (JoinSettings, join.refuse_without_effect),
    "bootstrap": (BootstrapOptions, bootstrap.refuse_without_effect),
}
# Given as the option --config, which a service gets, or meant for this command alone.
_NOT_MISSED = tuple(f"{ENVIRONMENT_PREFIX}_{name}" for name in ("CONFIG", "DEBUG"))
# A system service cannot access home directories, where a user's own programs are.
_HOMES = ("/home", "/root", "/run/user")
# It gets temporary directories of its own.
_TEMPORARY = ("/tmp", "/var/tmp")


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
    if action is not Action.INSTALL and options.show:
        # Wherever it was given: `remove --show` must remove nothing.
        raise UserError(
            ExitCode.USAGE, f"--show has no effect with {action}", "give it to `install` only"
        )
    if action is Action.STATUS:
        refuse_ignored(ctx, "with status", "leave it out: status changes nothing", "force")
    if options.show:
        remedy = "leave one of the two out"
        refuse_ignored(ctx, "with --show, which prints the file", remedy, "json", "force")
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
    (tree, refuse_ineffective), config = _COMMANDS[arguments[0]], _configuration(ctx, options)
    parsed = _parsed(ctx, arguments, config, options)
    given, added = parsed.params, list[str]()
    # Checks each value as the service would when it starts.
    settings: Any = build(
        tree, {each.parameter: _typed(each, given) for each in all_settings(tree)}
    )
    refuse_ineffective(parsed, settings)
    _check_addresses(settings.line)
    _refuse_relative_paths(parsed, tree)
    if settings.passphrase_file is not None:
        read_passphrase(settings.passphrase_file)
    if isinstance(settings, JoinSettings):
        if isinstance(settings.invite, NamedSwarm) and not settings.peering.bootstrap:
            # Without a list to look the name up in, only a swarm-id or a link will do.
            parse_target(given["target"])
        if _is_default(parsed, "wait"):
            # At boot the network may not be up yet; a service can wait.
            added.append("--wait")
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
        places = [path for _, path in _paths(parsed, tree)]
        _refuse_hidden_paths(places if config is None else [config, *places])
    elif os.environ.get("XDG_DATA_HOME") and given["data_dir"] is None:
        # The variable moves the data directory of this terminal's commands alone.
        added.append(f"--data-dir={default_data_dir()}")
    _warn_of_variables()
    before = () if config is None else ("--config", str(config))
    # What is added stands before the words given: behind a `--` it would be no option.
    words = (arguments[0], *added, *_with_absolute_paths(arguments[1:], tree))
    return Service(
        name=name,
        command=arguments[0],
        command_line=(*_program(), *before, *words),
        system=options.system,
    )


def _check_addresses(line: LineSettings) -> None:
    """Check addresses to listen on and to announce, as the node does. Raises `UserError`
    (`BAD_ADDRESS`)."""
    if not (line.listen or line.announce):
        return
    # Imported only now: libp2p takes a second.
    from ..network.addresses import parse_announce, parse_listen
    from ..network.errors import BadAddress
    from ..network.explain import explain_network

    try:
        for text in line.listen:
            parse_listen(text)
        for text in line.announce:
            parse_announce(text)
    except BadAddress as error:
        raise explain_network(error) from None


def _is_default(parsed: typer.Context, parameter: str) -> bool:
    """Whether neither the command nor the configuration file gives this option."""
    source = parsed.get_parameter_source(parameter)
    return source is None or source.name == "DEFAULT"


def _configuration(ctx: typer.Context, options: ServiceOptions) -> Path | None:
    """Return the configuration file with which the service starts, too: the one that this command was
    given, or the user's own if only a variable of this shell says where it is. None: there is none, or
    the service finds it."""
    given = ctx.find_root().params.get("config")
    if given is not None:
        return absolute_path(given)
    is_moved = not options.system and os.environ.get("XDG_CONFIG_HOME")
    own = absolute_path(default_config_file()) if is_moved else None
    return own if own is not None and own.exists() else None


def _parsed(
    ctx: typer.Context, arguments: list[str], config: Path | None, options: ServiceOptions
) -> typer.Context:
    """Return the command with its options, parsed as the service would: without the variables of this
    shell and, for a service of the whole system, without this user's own configuration file."""
    group: Any = ctx.find_root().command
    known = {
        name: command_options(inspect.unwrap(each.callback))
        for name, each in group.commands.items()
    }
    if options.system and config is None:
        config = Path(os.devnull)
    defaults = load_defaults(config, known, {})[arguments[0]]
    command = group.get_command(ctx, arguments[0])
    with command.make_context(
        arguments[0], arguments[1:], parent=ctx.find_root(), default_map=defaults
    ) as inner:
        return inner


def _refuse_relative_paths(parsed: typer.Context, tree: type) -> None:
    """Raise `UserError` (`BAD_CONFIG`) for a path in the configuration file that depends on the working
    directory: the service would use another place than this terminal. Paths in the command are made
    absolute."""
    for each, path in _paths(parsed, tree):
        source = parsed.get_parameter_source(each.parameter)
        is_from_file = source is not None and source.name == "DEFAULT_MAP"
        if is_from_file and not path.is_absolute():
            raise UserError(
                ExitCode.BAD_CONFIG,
                f"{each.name} in the configuration file is {str(path)!r}, which depends on the "
                "directory in which a command starts, and a service starts in another one",
                f"write the whole path there: {absolute_path(path)}",
            )


def _refuse_hidden_paths(paths: Iterable[Path]) -> None:
    """Raise `UserError` (`SERVICE`) for a path that a service of the whole system cannot see."""
    for path in map(absolute_path, paths):
        if str(path).startswith(tuple(f"{place}/" for place in (*_HOMES, *_TEMPORARY))):
            raise UserError(
                ExitCode.SERVICE,
                f"{path} is in a home directory or a temporary one, which a system service cannot "
                "access",
                "move it elsewhere, for example below /etc or /srv, or leave out --system",
            )


def _paths(parsed: typer.Context, tree: type) -> Iterator[tuple[Setting, Path]]:
    """Yield the paths in a command and its configuration, each with its setting."""
    for each in filter(_is_place, all_settings(tree)):
        given = parsed.params[each.parameter]
        for text in map(str, given if each.multiple else (given,)) if given is not None else ():
            is_web_address = each.name == "mirror" and "://" in text
            if not is_web_address:
                yield each, without_tilde(Path(text))


def _is_place(each: Setting) -> bool:
    """Whether the values of a setting are paths; a mirror may also be a web address."""
    return each.value_type is Path or each.name == "mirror"


def _typed(each: Setting, given: Mapping[str, Any]) -> Any:
    """Return the value of a setting as its own type: the parser leaves paths and choices as texts."""
    value = given[each.parameter]
    if value is None or not each.multiple:
        return None if value is None else each.value_type(value)
    return tuple(map(each.value_type, value))


def _with_absolute_paths(arguments: Sequence[str], tree: type) -> list[str]:
    """Return the words of a command with absolute paths: a service starts in another directory, and
    perhaps as another user."""
    places: Mapping[str, Callable[[str], object]] = {
        f"--{each.name}": lambda text: absolute_path(Path(text))
        for each in all_settings(tree)
        if each.value_type is Path
    } | {"--mirror": parse_mirror}
    words: list[str] = []
    for word in arguments:
        option, equals, value = word.partition("=")
        if words and words[-1] in places:
            words.append(str(places[words[-1]](word)))
        elif equals and option in places:
            words.append(f"{option}={places[option](value)}")
        else:
            words.append(word)
    return words


def _warn_of_variables() -> None:
    """Warn of settings in the environment of this shell, which the service does not get."""
    missed = sorted(
        name
        for name, value in os.environ.items()
        if value and name.startswith(f"{ENVIRONMENT_PREFIX}_") and name not in _NOT_MISSED
    )
    if missed:
        typer.echo(
            f"warning: the service does not get {', '.join(missed)} from this shell; give the options "
            "after the `--`, or in the configuration file",
            err=True,
        )


def _program() -> tuple[str, ...]:
    """Return the command that starts this program again."""
    script = Path(sys.executable).parent / "distro-node"
    if script.is_file():
        return (str(script),)
    return (sys.executable, "-m", "distro_node.node")
