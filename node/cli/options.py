"""Options that several commands share, and the checks of their values."""

from __future__ import annotations

import dataclasses
import getpass
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from ...crypto import keystore
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import Manifest, SwarmId
from ...protocol.wire.swarm_id import MAX_BOOTSTRAP, swarm_text
from ..errors import ExitCode, UserError
from ..settings.components import (
    ConsoleSettings,
    DashboardSettings,
    LineSettings,
    PeeringSettings,
)
from ..settings.tree import PASSPHRASE_VARIABLE, DaemonSettings
from ..settings.values import absolute_path, default_data_dir, parse_bootstrap, parse_target
from ..storage.data_dir import DataDir
from ..telemetry.logs import configure_logging
from ..util.regular_files import open_regular
from ..util.sanitize import harmless
from .settings_parameters import option_of

T = TypeVar("T", bound=DaemonSettings)

# A longer first line means that the file is wrong.
_MAX_PASSPHRASE_BYTES = 4096

PAGE_OPTIONS = ("dashboard_cert", "dashboard_key", "dashboard_plain")
"""The options, by their Python names, that say how a page is served at its address."""

ONE_DEVICE = ("with one device", "leave it out, or name several with --device", "split")
"""What `refuse_ignored` needs for a computation on one device."""

NO_RELAY = ("without --relay-updates", "leave it out, or add --relay-updates", "relay_memory")
"""What `refuse_ignored` needs for a node that does not relay updates."""

DataDirectory = Annotated[Path | None, option_of(DaemonSettings, "data_dir")]
PassphraseFile = Annotated[Path | None, option_of(DaemonSettings, "passphrase_file")]
Bootstrap = Annotated[list[str] | None, option_of(PeeringSettings, "bootstrap")]
Listen = Annotated[list[str] | None, option_of(LineSettings, "listen")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def data_directory(given: Path | None) -> DataDir:
    """Return the given data directory, or the system's default."""
    return DataDir(default_data_dir() if given is None else absolute_path(given))


def bootstrap_addresses(given: Sequence[str] | None) -> tuple[str, ...]:
    """Check `--bootstrap`. Raises `UserError` (`BAD_ADDRESS`)."""
    return tuple(map(parse_bootstrap, given or ()))


def stored_manifests(data: DataDir) -> list[Manifest]:
    """Return the manifests of the swarms stored here; those that cannot be read are left out."""
    try:
        known = data.known_swarms()
    except OSError:
        # A fault of the directory is reported by what uses it.
        return []
    found = (stored_manifest(data, swarm) for swarm in known)
    return [each for each in found if each is not None]


def stored_manifest(data: DataDir, swarm: SwarmId) -> Manifest | None:
    """Return a swarm's manifest from this disk; None if it is not there, or not intact."""
    try:
        return data.swarm(swarm).read_manifest(swarm)
    except (OSError, ProtocolError):
        return None


def refuse_ignored(ctx: typer.Context, why: str, remedy: str, *options: str) -> None:
    """Refuse options (by their Python names) of the command line that have no effect, `why`. Raises
    `UserError` (`USAGE`).

    The environment and the configuration file may set them all the same: for other commands.
    """
    for each in options:
        source = ctx.get_parameter_source(each)
        if source is not None and source.name == "COMMANDLINE":
            option = f"--{each.replace('_', '-')}"
            raise UserError(ExitCode.USAGE, f"{option} has no effect {why}", remedy)


def refuse_without_page(ctx: typer.Context, dashboard: DashboardSettings) -> None:
    """Refuse options of the command line that say how a page is served where none is. Raises `UserError`
    (`USAGE`)."""
    if dashboard.address is None:
        remedy = "leave it out, or give the page an address with --dashboard"
        refuse_ignored(ctx, "without a page", remedy, *PAGE_OPTIONS)


def joined_swarm(text: str, data: DataDir) -> SwarmId:
    """Read a swarm-id or link of a swarm that is stored here. Raises `UserError`."""
    identifier = parse_target(text).swarm
    if not data.swarm(identifier).manifest.is_file():
        known = ", ".join(swarm_text(one) for one in data.known_swarms())
        raise UserError(
            ExitCode.NOTHING_TO_EXPORT,
            f"nothing of this swarm is stored in {data.root}",
            f"use one of the stored swarms: {known}"
            if known
            else "join it first, or give the right directory with --data-dir",
        )
    return identifier


def only_swarm(text: str | None, data: DataDir, how: str = "name one with --swarm") -> SwarmId:
    """Read the swarm like `joined_swarm`; without a text, take the only one stored here. `how` is
    the remedy where there are several. Raises `UserError`."""
    if text is not None:
        return joined_swarm(text, data)
    known = data.known_swarms()
    if len(known) != 1:
        raise UserError(
            ExitCode.USAGE if known else ExitCode.NOTHING_TO_EXPORT,
            f"no swarm is stored in {data.root}"
            if not known
            else f"{len(known)} swarms are stored in {data.root}",
            "join one first, or give the right directory with --data-dir"
            if not known
            else f"{how}: " + ", ".join(swarm_text(one) for one in known),
        )
    return known[0]


def find_passphrase(data: DataDir, file: Path | None) -> str | None:
    """Return the passphrase from the file, the environment or, if the key needs one, the terminal. Warn
    if one is given and the key has none.

    Raises `UserError` (`KEYSTORE`) if the file cannot be read.
    """
    given = given_passphrase(data, file)
    if given:
        return given
    if sys.stdin.isatty() and sys.stderr.isatty():
        try:
            keystore.load_identity(data.identity, None)
        except keystore.PassphraseNeeded:
            return _typed_passphrase(data.identity)
        except keystore.KeystoreError:
            # The code that opens the key reports what is wrong with it.
            return None
    return None


def given_passphrase(data: DataDir, file: Path | None) -> str | None:
    """Return the passphrase from the file or the environment. Warn if there is one and the key has none.

    Raises `UserError` (`KEYSTORE`) if the file cannot be read.
    """
    given = os.environ.get(PASSPHRASE_VARIABLE) if file is None else read_passphrase(file)
    if given:
        _warn_if_unprotected(data.identity)
    return given


def _typed_passphrase(key: Path) -> str | None:
    """Return the passphrase that is typed in the terminal; None where the input ends before it. A
    Ctrl-C goes to the caller as everywhere, where a prompt of the library's would make it an error."""
    try:
        return getpass.getpass(f"Passphrase of {harmless(str(key))}: ", stream=sys.stderr)
    except EOFError:
        typer.echo(err=True)
        return None


def _warn_if_unprotected(key: Path) -> None:
    try:
        keystore.load_identity(key, None)
    except keystore.KeystoreError:
        # It needs the passphrase, or is not there yet; any other fault is reported by what opens it.
        return
    typer.echo(
        f"warning: the key in {harmless(str(key))} was made without a passphrase, so the given one does "
        "not protect it; to get a new identity that has one, move the file away",
        err=True,
    )


def read_passphrase(file: Path) -> str:
    """Return the passphrase in a file. Raises `UserError` (`KEYSTORE`)."""
    return read_secret(file, "passphrase", "--passphrase-file", ExitCode.KEYSTORE)


def read_secret(file: Path, what: str, option: str, code: ExitCode) -> str:
    """Return the first line of a file, a secret of the kind `what`. Raises `UserError` with this code if
    there is none."""

    def bad(problem: str) -> UserError:
        return UserError(
            code,
            f"the {what} file {file} {problem}",
            f"with {option}, give a file whose first line is the {what}",
        )

    try:
        with open_regular(file, or_pipe=True) as stream:
            line = stream.readline(_MAX_PASSPHRASE_BYTES + 1)
    except OSError as error:
        raise bad(f"cannot be read: {error.strerror}") from None
    try:
        # A byte order mark alone is no secret either.
        secret = line.rstrip(b"\r\n").decode("utf-8-sig")
    except UnicodeDecodeError:
        raise bad("is not text in UTF-8") from None
    if not secret or len(line) > _MAX_PASSPHRASE_BYTES:
        raise bad(f"has no {what} in its first line")
    return secret


def peers_of_link(*addresses: str) -> tuple[str, ...]:
    """Return the bootstrap peers for a new link, without duplicates, in the order given. Raises
    `UserError` (`USAGE`) for more than a link may name: nobody could join with it."""
    peers = tuple(dict.fromkeys(addresses))
    if len(peers) > MAX_BOOTSTRAP:
        raise UserError(
            ExitCode.USAGE,
            f"{len(peers)} bootstrap peers are too many for a link",
            f"name at most {MAX_BOOTSTRAP} with --bootstrap, those in a given link included",
        )
    return peers


def parameters_text(trained: int, frozen: int) -> str:
    """Return the number of a model's parameters, in the words that all commands use."""
    adapters = f" in adapters, and {frozen:,} frozen ones" if frozen else ""
    return f"{trained:,} parameters{adapters}"


def with_passphrase(settings: T) -> T:
    """Return the settings of a node with the passphrase of its key. Raises `UserError` (`KEYSTORE`)."""
    found = find_passphrase(DataDir(settings.data_dir), settings.passphrase_file)
    return dataclasses.replace(settings, passphrase=found)


def prepare_to_run(console: ConsoleSettings, data: DataDir) -> None:
    """Configure logging and memory of a long-running program: log to its directory, and show the
    screen if enabled."""
    from rich.console import Console

    from ..control.terminal import redraws
    from ..telemetry.loop_lag import freeze_permanent_objects

    # Where no screen can be drawn, log lines say the same.
    drawn = console.shows_screen and redraws(Console(stderr=True))
    configure_logging(
        log_format=console.log_format, level=console.log_level, folder=data.logs, screen=drawn
    )
    freeze_permanent_objects()
