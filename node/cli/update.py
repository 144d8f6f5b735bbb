"""`distro-node update`: report whether there is a newer release, and whether a swarm needs it."""

from __future__ import annotations

from dataclasses import dataclass
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ... import __version__
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import (
    MAX_MANIFEST_BYTES,
    PROTOCOL_VERSION,
    OtherVersion,
    SwarmId,
    decode_manifest,
)
from ...protocol.wire.swarm_id import Invite, swarm_text
from ..errors import ExitCode, UserError
from ..settings.values import parse_target
from ..storage.data_dir import DataDir
from ..util.regular_files import read_regular
from ..util.sanitize import harmless
from .options import (
    Bootstrap,
    DataDirectory,
    Json,
    bootstrap_addresses,
    data_directory,
    refuse_ignored,
)

if TYPE_CHECKING:
    from ..releases import Release

_STATUS_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class SwarmNeed:
    """The protocol versions of one swarm."""

    swarm: str
    name: str | None
    """The swarm's name, untrusted text; None: this program cannot read its description."""
    version: int
    """The version in use."""
    next_version: int | None = None
    """The version of a scheduled change."""
    next_round: int | None = None
    """The first round with that version."""

    @property
    def newest(self) -> int:
        """The version that a program needs to stay in the swarm."""
        return max(self.version, self.next_version or 0)

    @property
    def needs_newer(self) -> bool:
        """Whether that is newer than this program's."""
        return self.newest > PROTOCOL_VERSION


def update(
    ctx: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="An invite link (in quotes) or a swarm-id. [default: every swarm here]",
        ),
    ] = None,
    index: Annotated[
        str | None,
        typer.Option(
            "--index",
            metavar="URL",
            help="The package index to ask, by its JSON interface. [default: https://pypi.org/pypi]",
        ),
    ] = None,
    bootstrap: Bootstrap = None,
    data_dir: DataDirectory = None,
    json: Json = False,
) -> None:
    """See whether there is a newer release.

    Asks the package index for the newest release, and compares the protocol version that it speaks
    with those of the swarms in the data directory, or of the swarm of a link. Prints the command that
    installs the release. Nothing is installed or changed. The exit code is 32 if a swarm needs a
    newer program than this one, and 66 if the index does not answer. For example:

    \b
        distro-node update
    """
    # Imported only now, so that --help is fast.
    import trio

    from ..releases import INDEX, newest_release, update_command

    if target is None:
        refuse_ignored(
            ctx,
            "without TARGET: only swarms in the data directory are looked at",
            "add the link or the swarm-id of a swarm",
            "bootstrap",
        )
    data = data_directory(data_dir)
    introducers = bootstrap_addresses(bootstrap)
    invite = None if target is None else parse_target(target)
    needs: list[SwarmNeed] = []
    failed: UserError | None = None
    release: Release | None = None
    try:
        needs = _known_needs(data) if invite is None else [_need_of(data, invite, introducers)]
    except UserError as error:
        # What the index says is worth showing all the same.
        failed = error
    try:
        release = trio.run(newest_release, INDEX if index is None else index)
    except UserError as error:
        failed = failed or error
    command = update_command()
    if json and release is not None:
        typer.echo(dumps(_plain(release, command, needs)))
    elif not json:
        for line in _lines(release, command, needs, data):
            typer.echo(harmless(line))
    if failed is not None:
        raise failed
    if any(need.needs_newer for need in needs):
        raise typer.Exit(ExitCode.VERSION)


def _plain(release: Release, command: str, needs: list[SwarmNeed]) -> dict[str, Any]:
    return {
        "version": __version__,
        "protocol": PROTOCOL_VERSION,
        "newest": str(release.version),
        "newest_protocol": release.protocol,
        "newer": release.is_newer,
        "command": command,
        "swarms": [
            {
                "swarm": need.swarm,
                "name": need.name,
                "version": need.version,
                "next_version": need.next_version,
                "next_round": need.next_round,
                "needs_newer": need.needs_newer,
            }
            for need in needs
        ],
    }


def _lines(
    release: Release | None, command: str, needs: list[SwarmNeed], data: DataDir
) -> list[str]:
    lines = []
    if release is not None and release.is_newer:
        speaks = (
            "" if release.protocol is None else f", and speaks protocol version {release.protocol}"
        )
        lines += [
            f"distro-node {release.version} is out{speaks}; this is {__version__}, of version "
            f"{PROTOCOL_VERSION}.",
            f"To install it: {command}",
            f"Stop the node first ({data.command('leave')}), and start it again afterwards.",
        ]
    elif release is not None:
        lines += [
            f"distro-node {__version__} is the newest release: it speaks protocol version "
            f"{PROTOCOL_VERSION}."
        ]
    return lines + [_need_line(need, release) for need in needs]


def _need_line(need: SwarmNeed, release: Release | None) -> str:
    who = f"The swarm {need.swarm}" if need.name is None else f"The swarm {need.name!r}"
    if need.next_version is None:
        line = f"{who} uses protocol version {need.version}"
    else:
        line = (
            f"{who} changes from protocol version {need.version} to {need.next_version} in round "
            f"{need.next_round:,}"
        )
    if not need.needs_newer:
        older = need.newest < PROTOCOL_VERSION
        return f"{line}: {'this program is too new for it' if older else 'this program speaks it'}."
    if release is None or release.protocol is None:
        return f"{line}: it needs a newer program than this one."
    if release.protocol >= need.newest:
        return f"{line}: it needs a newer program, and {release.version} is new enough."
    return f"{line}: it needs a newer program, and {release.version} is too old as well."


def _known_needs(data: DataDir) -> list[SwarmNeed]:
    """Return the needs of every swarm in the data directory that can be read."""
    found = (_stored_need(data, swarm) for swarm in data.known_swarms())
    return [need for need in found if need is not None]


def _need_of(data: DataDir, invite: Invite, bootstrap: tuple[str, ...]) -> SwarmNeed:
    """Return the need of one swarm, from this disk or else from its members. Raises `UserError`."""
    stored = _stored_need(data, invite.swarm)
    if stored is not None:
        return stored
    import trio

    from ..memory_fit import fetch_manifest

    known = tuple(dict.fromkeys((*invite.bootstrap, *bootstrap)))
    manifest = trio.run(fetch_manifest, Invite(swarm=invite.swarm, bootstrap=known))
    return SwarmNeed(swarm=swarm_text(invite.swarm), name=manifest.name, version=manifest.version)


def _stored_need(data: DataDir, swarm: SwarmId) -> SwarmNeed | None:
    """Return what the running node, or the disk, tells of a swarm; None: nothing usable."""
    text = swarm_text(swarm)
    try:
        manifest = decode_manifest(
            read_regular(data.swarm(swarm).manifest, MAX_MANIFEST_BYTES), swarm
        )
    except OtherVersion as error:
        return SwarmNeed(swarm=text, name=None, version=error.version)
    except (OSError, ProtocolError):
        return None
    need = _running_need(data, text)
    if need is not None:
        return need
    from ..results.contribution_table import read_ledger

    try:
        ledger = read_ledger(data, swarm)
    except UserError:
        return SwarmNeed(swarm=text, name=manifest.name, version=manifest.version)
    change = ledger.versions.change
    return SwarmNeed(
        swarm=text,
        name=manifest.name,
        version=ledger.versions[len(ledger)].now,
        next_version=None if change is None else change.version,
        next_round=None if change is None else change.round,
    )


def _running_need(data: DataDir, swarm: str) -> SwarmNeed | None:
    """Return what the node that runs here reports of this swarm; None: it runs not, or in another."""
    from ..control.command_socket import ask
    from ..telemetry.status import Status, decode_any_status

    try:
        status = decode_any_status(ask(data.socket, "status", _STATUS_SECONDS))
    except UserError:
        return None
    if not isinstance(status, Status) or status.swarm is None or status.swarm.version is None:
        return None
    if status.node.swarm != swarm:
        return None
    change = status.swarm.version_change
    return SwarmNeed(
        swarm=swarm,
        name=status.swarm.name,
        version=status.swarm.version,
        next_version=None if change is None else change.version,
        next_round=None if change is None else change.round,
    )
