"""`distro-node doctor`: check whether this computer can take part, and what prevents it."""

from __future__ import annotations

from dataclasses import asdict
from json import dumps
from typing import TYPE_CHECKING, Annotated

import typer

from ...protocol.wire.manifest import SwarmId
from ...protocol.wire.swarm_id import Invite
from ..doctor.findings import by_severity, can_train
from ..errors import ExitCode
from ..settings.values import parse_multiaddr, parse_target
from ..storage.data_dir import DataDir
from ..util.sanitize import harmless
from .options import (
    Bootstrap,
    DataDirectory,
    Json,
    Listen,
    bootstrap_addresses,
    data_directory,
    refuse_ignored,
    stored_manifest,
    stored_manifests,
)

if TYPE_CHECKING:
    from ..memory_fit import Workload

_MARKS = {"stops": "✗", "hurts": "!", "unknown": "?", "good": "✓"}
_WIDTH = 16


def doctor(
    ctx: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="An invite link (in quotes) or a swarm-id, to test the connection to that "
            "swarm as well.",
        ),
    ] = None,
    bootstrap: Bootstrap = None,
    listen: Listen = None,
    data_dir: DataDirectory = None,
    json: Json = False,
) -> None:
    """Check whether this computer can take part in a swarm.

    Examines Python, PyTorch, the device, disk, memory, clock and ports. With a link it also tests
    whether this computer reaches members, whether members reach it, and how fast they send. Prints
    each finding with its remedy, the most severe first, and changes nothing. The exit code is 57 if
    something prevents training. For example:

    \b
        distro-node doctor 'distro:swarm-…?bootstrap=…'
    """
    if target is None:
        refuse_ignored(
            ctx,
            "without TARGET: no connection is tested",
            "add the link or the swarm-id of a swarm",
            *("bootstrap", "listen"),
        )
    invite = None if target is None else parse_target(target)
    bootstrap_peers = bootstrap_addresses(bootstrap)
    listen_addresses = tuple(map(parse_multiaddr, listen or ()))
    data = data_directory(data_dir)
    from ..doctor.computer import examine_computer

    swarm = None if invite is None else invite.swarm
    findings = list(examine_computer(data, _workload(data, swarm)))
    if invite is not None:
        import trio

        from ..doctor.line import examine_line

        addresses = tuple(dict.fromkeys((*invite.bootstrap, *bootstrap_peers)))
        findings += trio.run(
            examine_line, Invite(swarm=invite.swarm, bootstrap=addresses), listen_addresses
        )
    findings = by_severity(findings)
    if json:
        typer.echo(
            dumps({"fit": can_train(findings), "findings": [asdict(each) for each in findings]})
        )
    else:
        for each in findings:
            name = f"{_MARKS[each.severity]} {each.subject}"
            typer.echo(f"{name:<{_WIDTH}}  {harmless(each.what)}")
            if each.remedy:
                typer.echo(f"{'':<{_WIDTH}}  {harmless(each.remedy)}")
    if not can_train(findings):
        raise typer.Exit(ExitCode.UNFIT)


def _workload(data: DataDir, swarm: SwarmId | None) -> Workload | None:
    """Return the workload of the given swarm, or the largest one stored here; None: unknown."""
    from ..memory_fit import Workload

    if swarm is None:
        manifests = stored_manifests(data)
    else:
        only = stored_manifest(data, swarm)
        manifests = [] if only is None else [only]
    known = [Workload.of(each) for each in manifests]
    return max(known, key=lambda work: work.elements, default=None)
