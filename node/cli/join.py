"""`distro-node join`: take part in a swarm."""

from __future__ import annotations

import dataclasses
import os
import time

import typer

from ...protocol.wire.swarm_id import Invite, swarm_text
from ..errors import ExitCode, UserError
from ..settings.tree import JoinSettings
from ..settings.values import NamedSwarm, is_device_list, parse_torchrun_device
from ..storage.data_dir import DataDir
from ..training.torchrun import become_rank, end_ranks, launch_of
from ..util.sanitize import harmless
from .options import (
    NO_RELAY,
    ONE_DEVICE,
    prepare_to_run,
    refuse_ignored,
    refuse_without_page,
    stored_manifests,
    with_passphrase,
)
from .settings_parameters import with_settings


@with_settings
def join(ctx: typer.Context, settings: JoinSettings) -> None:
    """Take part in a swarm.

    Fetches the model and trains it with the other members until you leave. Ctrl-C announces that
    you leave, so that the others do not wait for you; a second Ctrl-C ends the node at once. Leave
    and come back whenever you like: the same command joins again where the swarm is by then. When
    the run is over, the command ends with exit code 0. A public swarm's name is looked up in the
    lists of the bootstrap peers of --bootstrap. For example:

    \b
        distro-node join 'distro:swarm-…?bootstrap=/dns4/boot.example.org/tcp/4001/p2p/12D3KooW…'
    """
    refuse_without_effect(ctx, settings)
    launch = launch_of(os.environ)
    trainer = settings.trainer
    if launch is not None:
        device = parse_torchrun_device(trainer.device)
        trainer = dataclasses.replace(trainer, device=device, under_torchrun=True)
        settings = dataclasses.replace(settings, trainer=trainer)
    settings = with_passphrase(settings)
    directory = DataDir(settings.data_dir)
    if launch is not None and launch.rank:
        become_rank(directory.root, confined=trainer.sandbox)
    if isinstance(settings.invite, NamedSwarm):
        settings = dataclasses.replace(settings, invite=_find(settings.invite.name, settings))
    directory.create()
    # libp2p is imported only now, so that --help is fast and a mistake above is reported at once.
    import trio

    from ..daemon import run_daemon
    from ..serve.page_model import open_page_model

    prepare_to_run(settings.console, directory)
    is_over = trio.run(run_daemon, settings, open_page_model(directory, settings.swarm))
    if launch is not None:
        end_ranks()
    if is_over:
        typer.echo(
            "The run is over, and its result is on this disk. To write the model to a directory: "
            + directory.command(f"export {swarm_text(settings.swarm)} --to my-model"),
            err=True,
        )


def refuse_without_effect(ctx: typer.Context, settings: JoinSettings) -> None:
    """Refuse options of the command line that have no effect. Raises `UserError` (`USAGE`)."""
    if not settings.relay.enabled:
        refuse_ignored(ctx, *NO_RELAY)
    if not is_device_list(settings.trainer.device) and launch_of(os.environ) is None:
        refuse_ignored(ctx, *ONE_DEVICE)
    refuse_without_page(ctx, settings.dashboard)
    if settings.energy.pause_when is None:
        remedy = "leave it out, or add a command with --pause-when"
        refuse_ignored(ctx, "without --pause-when", remedy, "pause_every")


def _find(name: str, settings: JoinSettings) -> Invite:
    """Return a link to the swarm of this name: the one that is stored here, or else the one that is
    listed. Raises `UserError` (`BAD_SWARM_ID` if there is no list to ask)."""
    import trio

    from ..listing.directory import read_directory
    from ..listing.names import joined_before, listed_swarm

    stored = joined_before(name, stored_manifests(DataDir(settings.data_dir)))
    if stored is not None:
        found = Invite(swarm=stored)
    else:
        bootstrap = settings.peering.bootstrap
        if not bootstrap:
            raise UserError(
                ExitCode.BAD_SWARM_ID,
                f"{name!r} is neither a swarm-id nor a link, and not the name of a swarm stored here",
                "copy the whole swarm-id or link again; for a public swarm's name add "
                "--bootstrap with a bootstrap peer that lists it",
            )
        directory = trio.run(read_directory, bootstrap, time.time())
        found = listed_swarm(name, directory.swarms)
    typer.echo(harmless(f"{name!r} is {swarm_text(found.swarm)}"), err=True)
    return found
