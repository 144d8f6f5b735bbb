"""`distro-node swarms`: list the public swarms, and whether this machine can train them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from json import dumps
from typing import TYPE_CHECKING, Any

import typer

from ...protocol.wire.manifest import Manifest
from ...protocol.wire.swarm_id import swarm_text
from ..errors import UserError
from ..settings.tree import FitSettings
from ..settings.values import is_device_list
from ..storage.data_dir import DataDir
from ..util.sanitize import harmless
from .options import ONE_DEVICE, Json, parameters_text, refuse_ignored
from .settings_parameters import with_settings

if TYPE_CHECKING:
    from ..doctor.swarm_fit import SwarmFit
    from ..listing.directory import Directory, PublicSwarm

_ANSWERS = {True: "yes", False: "no", None: "unknown"}


@with_settings
def swarms(ctx: typer.Context, settings: FitSettings, json: Json = False) -> None:
    """List public swarms, and which of them fit this machine.

    Asks the bootstrap peers of --bootstrap for the public swarms that they list. Name, task, size and
    rules come from each swarm's manifest, whose hash is its swarm-id; members, speed and progress are
    the median of what some members report. Two swarms can have the same name, so look at the id. For
    example:

    \b
        distro-node swarms --bootstrap /dns4/boot.example.org/tcp/4001/p2p/12D3KooW…
    """
    if not is_device_list(settings.device):
        refuse_ignored(ctx, *ONE_DEVICE)
    # Imported only now, so that --help is fast.
    import trio

    from ..doctor.swarm_fit import swarm_fit
    from ..listing.directory import read_directory
    from ..memory_fit import Survey, survey_device

    async def survey() -> Survey | UserError:
        try:
            return await survey_device(settings.device)
        except UserError as error:
            return error

    found = trio.run(read_directory, settings.bootstrap, time.time())
    fits: list[SwarmFit] = []
    if found.swarms:
        device = trio.run(survey)
        fits = [swarm_fit(each.manifest, device, settings) for each in found.swarms]
    if json:
        typer.echo(dumps(_plain(found, fits)))
        return
    for line in _lines(found, fits, DataDir(settings.data_dir)):
        typer.echo(harmless(line))


def _lines(found: Directory, fits: list[SwarmFit], home: DataDir) -> Iterator[str]:
    from ..listing.names import ambiguous_names

    if not found.swarms:
        yield "No public swarm is listed."
    for each, fit in zip(found.swarms, fits, strict=True):
        manifest = each.manifest
        yield manifest.name
        yield f"  {swarm_text(each.swarm)}"
        yield (
            f"  {manifest.task}, "
            f"{parameters_text(manifest.elements, manifest.frozen_elements)}; {_rules(manifest)}"
        )
        yield f"  {_progress(each)}"
        yield f"  fits this machine: {_ANSWERS[fit.fits]}, because {fit.because}"
        yield "  " + home.command(f"join '{each.link}'")
        yield ""
    for name in ambiguous_names(found.swarms):
        yield f"Warning: several of these swarms have the name {name!r}; only the id tells them apart."
    if found.other_versions:
        yield f"Left out: {found.other_versions} of another protocol version (update distro-node)."
    if found.unusable:
        yield (
            f"Left out: {found.unusable} whose manifest or entries are invalid, or whose entries are an "
            "hour away from this computer's clock."
        )
    for address, why in sorted(found.failures.items()):
        yield f"No list from {address}: {why}"


def _rules(manifest: Manifest) -> str:
    rules = {
        "open": "open to anybody",
        "invite": "by invitation: the founder's ticket is needed",
    }[manifest.admission.policy]
    if manifest.data.private is not None:
        rules += "; every member brings its own data (--data)"
    return rules


def _progress(each: PublicSwarm) -> str:
    last, pace = each.manifest.last_round, each.tokens_per_second
    rounds = f"{_number(each.rounds_done, 'round')} done"
    if last is not None:
        rounds += f", {last - each.rounds_done:,} to go"
    speed = "" if pace is None else f", {pace:,} tokens a second"
    full = " (full)" if each.members >= each.manifest.admission.max_members else ""
    return (
        f"{_number(each.members, 'member')}{full}{speed}, {rounds}, says the median of "
        f"{_number(len(each.entries), 'report')}"
    )


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _plain(found: Directory, fits: list[SwarmFit]) -> dict[str, Any]:
    return {
        "swarms": [
            {**each.plain(), "fits": fit.fits, "because": fit.because}
            for each, fit in zip(found.swarms, fits, strict=True)
        ],
        "other_versions": found.other_versions,
        "unusable": found.unusable,
        "failures": [f"{address}: {why}" for address, why in found.failures.items()],
    }
