"""`distro-node export` and `verify`: export a swarm's trained model, and check an exported one."""

from __future__ import annotations

from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ExitCode, UserError
from ..storage.data_dir import DataDir
from ..util.sanitize import harmless
from .command_settings import ExportOptions
from .options import DataDirectory, Json, data_directory, joined_swarm
from .settings_parameters import with_settings
from .stage_display import stage_display

if TYPE_CHECKING:
    from ..results.verify import Verified


@with_settings
def export(options: ExportOptions, json: Json = False) -> None:
    """Write the trained model to a directory.

    Writes the newest parameters that this node has, or those after a given round, in the format of
    Hugging Face: `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained` load the
    directory, and its README.md states where the model comes from. If the swarm trains adapters, only
    these are written, for `PeftModel.from_pretrained`, or with `--merged` the full model with the
    adapters merged into it. With `--gguf` the model is one file for llama.cpp and the programs built on
    it, adapters merged in. The node may be running or not. For example:

    \b
        distro-node export swarm-… --to my-model
        distro-node export swarm-… --to my-model --gguf --quantise q8_0
    """
    gguf, push = options.gguf_type, options.push
    if push is not None:
        # Before the export, which may take minutes.
        from ..results.hub_upload import check_push

        check_push(push)
    data = DataDir(options.data_dir)
    import trio

    from ..results.export import ExportSettings, export_swarm

    settings = ExportSettings(
        swarm=joined_swarm(options.swarm, data),
        data_dir=data.root,
        to=options.to.absolute(),
        selector=options.state,
        merged=options.merged,
        gguf=gguf,
    )
    with stage_display() as progress:
        done = trio.run(export_swarm, settings, progress)
    url = None
    if push is not None:
        from ..results.hub_upload import push as put_on_hub

        url = put_on_hub(done.directory, push)
    if json:
        facts = asdict(done) | {"directory": str(done.directory)}
        typer.echo(dumps(facts if url is None else facts | {"url": url}))
        return
    typer.echo(
        f"Wrote the model after round {done.round:,} ({done.parameters:,} parameters) to "
        f"{done.directory}"
    )
    if url is not None:
        typer.echo(f"Uploaded the model to the Hugging Face Hub: {url}")


def verify(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIRECTORY", readable=False, help="A model that was exported."),
    ],
    swarm: Annotated[
        str, typer.Argument(metavar="SWARM", help="The swarm-id, or a link to the swarm.")
    ],
    data_dir: DataDirectory = None,
    json: Json = False,
) -> None:
    """Check that an exported model is what a swarm agreed on.

    Computes the fingerprint of the weights in the directory and looks for it in the swarm's records,
    which a quorum of its members has signed and this node has checked. Configuration, tokenizer, chat
    template and generation settings must be the swarm's, too. The exit code is 0 if all of this
    holds, 53 if not, and 62 if the directory has other files that a program might read. For example:

    \b
        distro-node verify my-model swarm-…
    """
    data = data_directory(data_dir)
    identifier = joined_swarm(swarm, data)
    import trio

    from ..results.verify import VerifySettings, verify_model

    settings = VerifySettings(directory=directory.absolute(), swarm=identifier, data_dir=data.root)
    with stage_display() as progress:
        found = trio.run(verify_model, settings, progress)
    if json:
        typer.echo(dumps(asdict(found)))
    else:
        typer.echo(_verified_text(found))
    if found.unchecked:
        raise UserError(
            ExitCode.PARTLY_VERIFIED,
            f"{directory} contains files that were not checked: {harmless(', '.join(found.unchecked))}",
            "its weights are the swarm's; remove these files, or export the model again with "
            "`distro-node export`",
        )


def _verified_text(found: Verified) -> str:
    proof = {
        "content": "its content id is the one that the swarm's record certifies",
        "fingerprint": "its fingerprint is the one in the swarm's record, which rules out accidental "
        "changes. Only rounds with a snapshot also have a content id, which cannot be forged",
    }
    # Left out if there are unchecked files: a program may read those too, and they may override these
    # settings.
    settings_line = (
        ""
        if found.unchecked
        else "  configuration, tokenizer and generation settings match the swarm's\n"
    )
    return (
        f"This is the swarm's model after round {found.round:,}: {proof[found.proof]}.\n{settings_line}"
        f"  record {found.record}, fingerprint {found.fingerprint}"
    )
