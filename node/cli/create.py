"""`distro-node create`: create a swarm."""

from __future__ import annotations

import functools
from importlib import resources
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ...protocol.wire.swarm_id import Invite, invite_text, swarm_text
from ..errors import ExitCode, UserError
from ..settings.values import without_tilde
from ..storage.data_dir import DataDir
from .command_settings import CreateOptions
from .options import Json, find_passphrase, parameters_text, peers_of_link, refuse_ignored
from .settings_parameters import with_settings

if TYPE_CHECKING:
    from ...protocol.wire.manifest import Manifest
    from ..create.new_swarm import NewSwarm


# The options, by their Python names, of a swarm that is created or tried.
_FOR_A_SWARM = ("data", "bootstrap", "passphrase_file", "dry_run", "device", "public")


@with_settings
def create(ctx: typer.Context, options: CreateOptions, json: Json = False) -> None:
    """Create a swarm.

    Reads the description of the run from MANIFEST.toml, turns your texts into training data,
    initialises the model (or loads a checkpoint), stores everything in the data directory and
    prints the link with which others join. It sends nothing: the swarm starts when you join it
    yourself. For example:

    \b
        distro-node create --example > my-swarm.toml
        distro-node create my-swarm.toml --data corpus.parquet --dry-run
        distro-node create my-swarm.toml --data corpus.parquet
    """
    if options.example:
        if options.manifest is not None:
            raise UserError(
                ExitCode.USAGE,
                "--example takes no MANIFEST: it prints an example and writes no file",
                "redirect it: distro-node create --example > my-swarm.toml",
            )
        refuse_ignored(ctx, "with --example", "leave one of the two out", *_FOR_A_SWARM, "json")
        typer.echo(_example(), nl=False)
        return
    if options.manifest is None:
        raise UserError(
            ExitCode.USAGE,
            "no manifest file is given",
            "run `distro-node create --example > my-swarm.toml`, then "
            "`distro-node create my-swarm.toml --data TEXTS`",
        )
    # trio, numpy and others are imported only now, so that --help is fast.
    import trio

    from ..create.new_swarm import CreateSettings, create_swarm, dry_run
    from .stage_display import stage_display

    home, dry = DataDir(options.data_dir), options.dry_run
    peers = peers_of_link(*options.bootstrap)
    settings = CreateSettings(
        manifest=options.manifest,
        data=tuple(map(_data_place, options.data)),
        data_dir=home.root,
        passphrase=None if dry else find_passphrase(home, options.passphrase_file),
        device=options.device,
        public=options.public,
    )
    with stage_display() as progress:
        make = dry_run if dry else create_swarm
        made = trio.run(functools.partial(make, settings, progress))
    link = invite_text(Invite(swarm=made.manifest.swarm, bootstrap=peers))
    if json:
        typer.echo(dumps(_trial_facts(made) if dry else _facts(made, home, link)))
        return
    _describe(made, dry=dry)
    if dry:
        typer.echo(
            "\nNo swarm was created. The tokens are kept, so `create` without --dry-run need not "
            "tokenise again."
        )
        return
    if made.data.bad:
        typer.echo(
            f"The report in {home.logs / 'create.json'} names the bad rows, at most the first "
            "thousand."
        )
    _explain_start(made.manifest, home, link, linked=bool(peers))


def _trial_facts(made: NewSwarm) -> dict[str, Any]:
    facts = made.facts()
    return facts | {
        "samples": made.forecast.samples,
        "tokens": facts["epoch_tokens"],
        "heldout_tokens": made.data.heldout_tokens,
    }


def _facts(made: NewSwarm, home: DataDir, link: str) -> dict[str, Any]:
    swarm = made.manifest.swarm
    return made.facts() | {
        "swarm": swarm_text(swarm),
        "invite": link,
        "manifest": str(home.swarm(swarm).manifest),
        "report": str(home.logs / "create.json"),
    }


def _describe(made: NewSwarm, *, dry: bool) -> None:
    """Print what was read, what training will cost, and what the founder should know."""
    typer.echo(
        f"{'Would create' if dry else 'Created'} the swarm {made.manifest.name!r}: "
        f"{parameters_text(made.manifest.elements, made.manifest.frozen_elements)}, "
        f"{made.forecast.samples:,} training sequences of {made.manifest.data.sequence_length} "
        "tokens.\n"
    )
    borders = () if made.borders is None else (made.borders,)
    for line in (*made.data.lines(), *borders, *made.forecast.lines()):
        typer.echo(line)
    for warning in made.warnings:
        typer.echo(f"Warning: {warning}")
    if made.strangers_notice is not None:
        typer.echo(made.strangers_notice)
    if made.manifest.admission.public:
        typer.echo(
            "The swarm is public: bootstrap peers that list swarms show its name and progress to "
            "anybody."
        )


def _explain_start(manifest: Manifest, home: DataDir, link: str, *, linked: bool) -> None:
    """Print the link, and how the founder and the others join. `linked`: it has bootstrap peers."""
    swarm = swarm_text(manifest.swarm)
    typer.echo()
    typer.echo(f"swarm-id     {swarm}")
    typer.echo(f"invite link  {link}\n")
    start = home.command(f"join '{link}'")
    typer.echo(f"Start the swarm with\n\n    {start}\n")
    # Without bootstrap peers in it a link says no more than the id.
    guests = f"'{link}' PEER" if linked else f"{swarm} PEER --bootstrap ADDRESS"
    if manifest.admission.issuer is not None:
        typer.echo(
            f"Each guest needs a link of its own: {home.command(f'invite {guests}')}\n"
            "where PEER is what `distro-node id --create` prints on the guest's computer."
        )
    elif linked:
        typer.echo("Then give the link to everyone who should join.")
    else:
        typer.echo(
            "Others in your local network join with the same link. For others on the internet, run "
            "`distro-node bootstrap`\non a machine that they can reach, and add its address to the "
            f"link: {home.command(f'invite {swarm} --bootstrap ADDRESS')}"
        )


def _data_place(text: str) -> Path | str:
    """Return the path of training data, or an address at the hub as it is. Raises `UserError` (`USAGE`)
    for an empty text."""
    from ..create.files import HUB

    if not text:
        # Everything in the current directory would be trained on.
        raise UserError(
            ExitCode.USAGE,
            "the path given as --data is empty",
            "name a file or a directory; `.` is the current directory",
        )
    return text if text.startswith(HUB) else without_tilde(Path(text))


def _example() -> str:
    return (
        resources.files("distro_node.node.create")
        .joinpath("manifests/example.toml")
        .read_text("utf-8")
    )
