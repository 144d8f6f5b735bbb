"""`distro-node create`: make a swarm of one's own."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from ...protocol.wire.swarm_id import Invite, invite_text, swarm_text
from ..errors import ExitCode, UserError
from .options import (
    Bootstrap,
    DataDirectory,
    Json,
    PassphraseFile,
    bootstrap_addresses,
    data_directory,
    find_passphrase,
)


def create(
    manifest: Annotated[
        Path | None,
        typer.Argument(metavar="MANIFEST.toml", help="The file that describes the run."),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            metavar="PATH",
            help="A text file, or a directory of them, to train on; may be repeated.",
        ),
    ] = None,
    bootstrap: Bootstrap = None,
    data_dir: DataDirectory = None,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
    example: Annotated[
        bool, typer.Option("--example", help="Print a commented manifest file to start from.")
    ] = False,
) -> None:
    """Make a swarm of your own.

    Reads what is to be trained from MANIFEST.toml, turns your texts into training data, draws the
    initial model (or takes a checkpoint), stores all of it in the data directory and prints the
    link with which others join. Nothing is sent to anybody: the swarm begins when you join it
    yourself. For example:

    \b
        distro-node create --example > my-swarm.toml
        distro-node create my-swarm.toml --data ~/texts
    """
    if example:
        typer.echo(_example(), nl=False)
        return
    if manifest is None:
        raise UserError(
            ExitCode.USAGE,
            "the manifest file is missing",
            "run `distro-node create --example > my-swarm.toml`, then "
            "`distro-node create my-swarm.toml --data TEXTS`",
        )
    # trio, numpy and all: only now, so that --help is quick.
    import trio

    from ..create.new_swarm import CreateSettings, create_swarm

    introducers = bootstrap_addresses(bootstrap)
    place = data_directory(data_dir)
    settings = CreateSettings(
        manifest=manifest,
        data=tuple(data or ()),
        data_dir=place.root,
        passphrase=find_passphrase(place, passphrase_file),
    )
    with _progress() as progress:
        made = trio.run(functools.partial(create_swarm, settings, progress))
    link = invite_text(Invite(swarm=made.swarm, bootstrap=introducers))
    if json:
        facts = {
            "swarm": swarm_text(made.swarm),
            "invite": link,
            "name": made.name,
            "parameters": made.elements,
            "samples": made.data.samples,
            "tokens": sum(shard.tokens for shard in made.data.shards),
            "heldout_tokens": made.data.heldout.tokens,
            "manifest": str(place.swarm(made.swarm).manifest),
        }
        typer.echo(dumps(facts))
        return
    typer.echo(
        f"Made the swarm {made.name!r}: {made.elements:,} parameters, "
        f"{made.data.samples:,} training sequences of {made.data.sequence_length} tokens.\n"
    )
    typer.echo(f"swarm-id     {swarm_text(made.swarm)}")
    typer.echo(f"invite link  {link}\n")
    options = "" if data_dir is None else f" --data-dir {shlex.quote(str(data_dir))}"
    typer.echo(f"Start it with\n\n    distro-node join '{link}'{options}\n")
    if introducers:
        typer.echo("and give the link to everybody who is to join.")
    else:
        typer.echo(
            "Others on your local network join with the same link. For others on the internet, "
            "run `distro-node bootstrap`\nwhere it can be reached, and add its address to the "
            "link: distro-node create … --bootstrap ADDRESS"
        )


def _example() -> str:
    return (
        resources.files("distro_node.node.create")
        .joinpath("manifests/example.toml")
        .read_text("utf-8")
    )


@contextmanager
def _progress() -> Iterator:
    """A bar on stderr, which leaves stdout to the result."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    # In a log file a bar is noise.
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bars:
        tasks = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what)
            # Before the first step of a task of one step, a bar that moves says more than 0 %.
            bars.update(tasks[what], completed=done, total=None if total == 1 > done else total)

        yield show
