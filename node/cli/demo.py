"""`distro-node demo`: run a whole swarm with failures on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    nodes: Annotated[
        int, typer.Option("--nodes", metavar="N", min=2, max=64, help="How many nodes to start.")
    ] = 4,
    rounds: Annotated[
        int,
        typer.Option("--rounds", metavar="N", min=9, max=100_000, help="How many rounds to train."),
    ] = 60,
    victim: Annotated[
        int | None,
        typer.Option(
            "--victim",
            metavar="N",
            min=1,
            help="Which node is killed; 1 is the swarm's founder. [default: the last one]",
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option("--out", metavar="DIRECTORY", readable=False, help="Where the results go."),
    ] = Path("demo-out"),
) -> None:
    """Run a whole swarm on this machine.

    Checks that it keeps its promises. Starts a bootstrap peer and several nodes as separate
    processes and trains a small model. Meanwhile it kills a node, lets another one join, kills the
    bootstrap peer too, and reports what happened. For example:

    \b
        distro-node demo --nodes 4 --rounds 60
    """
    from ..demo import run_demo

    raise typer.Exit(run_demo(nodes, rounds, out, victim))
