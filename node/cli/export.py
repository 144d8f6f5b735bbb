"""`distro-node export`: take the trained model out of a swarm."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from ...protocol.wire.swarm_id import swarm_text
from ..errors import ExitCode, UserError
from ..settings import ExportSettings
from .options import DataDirectory, Json, data_directory, parse_target


def export(
    swarm: Annotated[
        str, typer.Argument(metavar="SWARM", help="The swarm-id, or a link to the swarm.")
    ],
    to: Annotated[
        Path, typer.Option("--to", metavar="DIRECTORY", help="Where to write the model.")
    ],
    data_dir: DataDirectory = None,
    json: Json = False,
) -> None:
    """Write the trained model to a directory.

    Takes the model as this node last had it, in the format of Hugging Face: the directory can be
    loaded with `AutoModelForCausalLM.from_pretrained`. The node may be running or not. For example:

    \b
        distro-node export swarm-… --to my-model
    """
    data = data_directory(data_dir)
    identifier = parse_target(swarm).swarm
    if not data.swarm(identifier).manifest.is_file():
        known = ", ".join(swarm_text(one) for one in data.known_swarms())
        raise UserError(
            ExitCode.NOTHING_TO_EXPORT,
            f"nothing of this swarm is stored in {data.root}",
            f"these swarms are: {known}"
            if known
            else "join it first, or give the right directory with --data-dir",
        )
    import trio

    from ..export import export_swarm

    settings = ExportSettings(swarm=identifier, data_dir=data.root, to=to.absolute())
    done = trio.run(export_swarm, settings)
    if json:
        facts = {
            "directory": str(done.directory),
            "round": done.round,
            "parameters": done.parameters,
        }
        typer.echo(dumps(facts))
    else:
        typer.echo(
            f"Wrote the model after round {done.round:,} ({done.parameters:,} parameters) to "
            f"{done.directory}"
        )
