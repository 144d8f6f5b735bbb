"""The program `distro-node`: all commands, their common options, and the exit code."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ... import __version__
from ..config import ENVIRONMENT_PREFIX, command_options, load_defaults
from ..errors import ExitCode, UserError
from ..settings.values import without_tilde
from ..telemetry.logs import LogLevel, configure_logging
from ..util.sanitize import harmless
from ..util.standard_streams import drop_unwritten, open_standard_streams
from .bootstrap import bootstrap
from .create import create
from .dashboard import dashboard
from .demo import demo
from .doctor import doctor
from .export import export, verify
from .failures import explain
from .fit import fit
from .identity import id_command
from .invite import invite
from .join import join
from .observe import observe
from .option_groups import GroupedCommand
from .receipt import RECEIPT_COMMANDS
from .serve import serve
from .service import service
from .status import leave, pause, resume, status
from .swarms import swarms
from .try_out import evaluate, generate
from .update import update

COMMANDS = {
    "join": join,
    "observe": observe,
    "swarms": swarms,
    "create": create,
    "invite": invite,
    "status": status,
    "dashboard": dashboard,
    "pause": pause,
    "resume": resume,
    "leave": leave,
    "export": export,
    "generate": generate,
    "serve": serve,
    "evaluate": evaluate,
    "verify": verify,
    **RECEIPT_COMMANDS,
    "bootstrap": bootstrap,
    "id": id_command,
    "service": service,
    "doctor": doctor,
    "fit": fit,
    "update": update,
    "demo": demo,
}

_HELP_OPTIONS = ("-h", "--help")


class _Commands(TyperGroup):
    """The group of commands, in the order in which they were registered."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        try:
            with _harmless_usage():
                return super().make_context(*arguments, **options)
        except BrokenPipeError:
            # The help is printed while the arguments are read.
            drop_unwritten()
            raise typer.Exit from None

    def invoke(self, ctx: Any) -> Any:
        try:
            with _harmless_usage():
                result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader of our output (`| head`) has closed the pipe, which is no error.
            drop_unwritten()
            return None
        return result


@contextlib.contextmanager
def _harmless_usage() -> Iterator[None]:
    """Sanitise the library's usage errors: they repeat unknown words, which may come from a
    stranger's link."""
    try:
        yield
    except Exception as error:
        # The library's class for these errors has no public name.
        message = getattr(error, "message", None)
        if (
            hasattr(error, "format_message")
            and isinstance(message, str)
            and not _is_help(message, error)
        ):
            setattr(error, "message", harmless(message))  # noqa: B010  (not every exception has one)
        raise


def _is_help(message: str, error: Exception) -> bool:
    """Whether the message of a usage error is the help, which the library shows if no command is
    given: it has many lines, and no words of a stranger's."""
    context = getattr(error, "ctx", None)
    return context is not None and message == context.get_help()


app = typer.Typer(
    name="distro-node",
    cls=_Commands,
    add_completion=True,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": list(_HELP_OPTIONS),
        "max_content_width": 100,
    },
    epilog="Every option can also be given as an environment variable, DISTRO_NODE_<OPTION> or "
    "DISTRO_NODE_<COMMAND>_<OPTION>, or in the configuration file.",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit; the console entry of the package.

    Every exit has a code of `ExitCode` and, if it isn't 0, one line on stderr that states what is
    wrong and one that states what to do. With DISTRO_NODE_DEBUG=1 bugs of ours print their traceback
    instead of writing it to a file.
    """
    open_standard_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=given, prog_name="distro-node", obj=given)
    except SystemExit:
        raise
    except BaseException as error:
        with _ended_by_interrupt():
            code = explain(error)
            drop_unwritten()
        sys.exit(code)


@contextlib.contextmanager
def _ended_by_interrupt() -> Iterator[None]:
    """Let a Ctrl-C end the process at once, where it would interrupt no work and print a traceback."""
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread is interrupted, and may choose how.
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"distro-node {__version__}")
        raise typer.Exit


@app.callback()
def _settings(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            readable=False,
            envvar=f"{ENVIRONMENT_PREFIX}_CONFIG",
            help="The configuration file (TOML): a table for each command, and above the tables "
            "keys for all.",
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Train large models together over home internet connections.

    Join a swarm with `distro-node join LINK`, watch it with `distro-node status`. To start a swarm
    of your own: `distro-node create --example`.
    """
    if not logging.getLogger().handlers:
        # For a trainer's log lines while a swarm is created or a model exported; nodes configure
        # their own logging.
        configure_logging(level=LogLevel.WARNING)
    options = {name: command_options(command) for name, command in COMMANDS.items()}
    try:
        # A shell leaves `~` as it is in `--config=~/file`, and a container does in a variable.
        file = None if config is None else without_tilde(config)
        ctx.default_map = load_defaults(file, options, os.environ)
    except UserError:
        # The help must be readable even with a broken configuration.
        if not any(word in _HELP_OPTIONS for word in ctx.obj):
            raise


for _name, _command in COMMANDS.items():
    app.command(_name, cls=GroupedCommand)(_command)

__all__ = ["COMMANDS", "ExitCode", "app", "main"]
