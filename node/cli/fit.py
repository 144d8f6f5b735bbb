"""`distro-node fit`: show what this machine needs for a swarm, and which options make it fit."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...crypto.hashing import content_id
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import MAX_MANIFEST_BYTES, Manifest, SwarmId, decode_manifest
from ...protocol.wire.swarm_id import Invite
from ..errors import ExitCode, UserError
from ..settings.tree import FitSettings
from ..settings.values import is_device_list, parse_target, without_tilde
from ..storage.data_dir import DataDir
from ..util.regular_files import read_regular
from ..util.sanitize import harmless
from .options import ONE_DEVICE, Json, parameters_text, refuse_ignored
from .settings_parameters import with_settings

if TYPE_CHECKING:
    from ..memory_fit import MemoryFit

_NAME_WIDTH, _SIZE_WIDTH = 36, 14


@with_settings
def fit(
    ctx: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="An invite link (in quotes), a swarm-id, a manifest, or a founder's file (.toml).",
        ),
    ],
    settings: FitSettings,
    json: Json = False,
) -> None:
    """See what this machine needs to train a swarm's model.

    Lists the ways to store momentum and activations, whether the model fits with each, and which one
    a node would use: the first that fits. Nothing is trained or changed. The exit code is 57 if none
    fits. For example:

    \b
        distro-node fit 'distro:swarm-…?bootstrap=…'
        distro-node fit llama-1.2b.toml --memory 12GB
    """
    # Imported only now, so that --help is fast.
    import trio

    from ..memory_fit import Workload, fit_workload, survey_device

    if not is_device_list(settings.device):
        refuse_ignored(ctx, *ONE_DEVICE)
    device, limit, micro_batch = settings.device, settings.memory, settings.micro_batch
    path = without_tilde(Path(target))
    if path.suffix == ".toml" or _is_there(path):
        refuse_ignored(ctx, "with a file: no member is asked", "leave it out", "bootstrap")

    async def examine() -> MemoryFit:
        if path.suffix == ".toml":
            from ..create.defaults import default_optimizer
            from ..create.manifest_draft import read_model
            from ..create.manifest_file import read_manifest_file
            from ..training.task_names import SFT, WITHOUT_DROPOUT, completions

            file = read_manifest_file(path)
            model = read_model(file, path)
            lora = None if model.lora is None else model.lora.for_trainer()
            surveyed = await survey_device(device, model.config, lora)
            # Conversations are kept apart unless the file wishes otherwise.
            attention = file.data.attention or ("document" if file.task == SFT else "sequence")
            work = Workload(
                config=model.config,
                parameters=surveyed.parameters,
                sequence_length=model.sequence_length,
                optimizer=default_optimizer(file, path, surveyed.parameters),
                frozen=surveyed.frozen,
                features=file.features,
                completions=completions(file.task, file.task_settings),
                local_steps=file.rounds.local_steps,
                documents=attention == "document",
                dropout=file.task not in WITHOUT_DROPOUT,
            )
            return fit_workload(file.name, work, surveyed, limit, micro_batch, settings.split)
        if _is_there(path):
            manifest = _read(path)
        else:
            manifest = await _find(target, settings)
        surveyed = await survey_device(device)
        work = Workload.of(manifest)
        return fit_workload(manifest.name, work, surveyed, limit, micro_batch, settings.split)

    found = trio.run(examine)
    if json:
        typer.echo(dumps(found.plain()))
    else:
        for line in _lines(found):
            typer.echo(harmless(line))
    if found.chosen is None:
        raise typer.Exit(ExitCode.UNFIT)


def _lines(found: MemoryFit) -> Iterator[str]:
    from ..memory_fit import plan_line

    yield f"{found.name}: {parameters_text(found.elements, found.frozen)}"
    main_memory = f", and {_size(found.room.host)} of main memory" if found.room.host else ""
    yield f"{found.device}: {_size(found.room.device)} can be used{main_memory}"
    if found.devices > 1:
        has = "a part of the model" if found.shards else "a copy of the model"
        yield f"Each of the {found.devices} devices would hold {has}."
    yield ""
    shown = found.plan_to_show
    columns = ("device", "main memory") if found.room.host else ("",)
    yield _row("", *columns)
    for part in shown.needs.parts:
        sizes = (part.device, part.host) if found.room.host else (part.device,)
        yield _row(part.name, *(_size(size) if size else "" for size in sizes))
    sums = (shown.needs.device, shown.needs.host) if found.room.host else (shown.needs.device,)
    yield _row("total, at most", *map(_size, sums))
    yield ""
    for choice in found.choices:
        mark = "✓" if choice.fits else "✗"
        taken = " (a node would use this)" if choice is found.chosen else ""
        yield f"{mark} {_size(choice.needs.device):>8}  {choice.summary}{taken}"
    yield ""
    if found.chosen is None:
        yield "The model does not fit: use a device with more memory, or free some memory."
    else:
        yield f"A node would use {plan_line(found.chosen, found.room)}."
        if found.audit_bytes:
            room = _size(found.audit_bytes)
            yield (
                "Members of this swarm audit each other's work. For its audits this node needs another "
                f"{room} of free main memory; with less it only trains."
            )
        if found.aggregator_room:
            room = _size(found.aggregator_room)
            yield (
                "Committees of members aggregate the updates. To aggregate in a swarm with one "
                f"committee, this node needs another {room} of free main memory; with more "
                "committees, a part of that. With less it only trains."
            )


def _row(name: str, *cells: str) -> str:
    return f"{name:<{_NAME_WIDTH}}{''.join(f'{cell:>{_SIZE_WIDTH}}' for cell in cells)}".rstrip()


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def _is_there(path: Path) -> bool:
    """Whether TARGET is the path of a file. A link can be longer than any path."""
    try:
        return path.exists()
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return False


def _read(path: Path) -> Manifest:
    """Read a manifest in the form stored in a data directory. Raises `UserError` (`MANIFEST`)."""
    try:
        data = read_regular(path, MAX_MANIFEST_BYTES)
        return decode_manifest(data, SwarmId(content_id(data)))
    except OSError as error:
        problem = error.strerror
    except ProtocolError as error:
        problem = str(error)
    raise UserError(
        ExitCode.MANIFEST,
        f"{path} cannot be read as a manifest: {problem}",
        "give an invite link, a founder's file (.toml), or the file `manifest` of a swarm in a data "
        "directory",
    )


async def _find(target: str, settings: FitSettings) -> Manifest:
    """Return a swarm's manifest, from this disk or else from its members. Raises `UserError`."""
    invite, data = parse_target(target), DataDir(settings.data_dir)
    try:
        return decode_manifest(
            read_regular(data.swarm(invite.swarm).manifest, MAX_MANIFEST_BYTES), invite.swarm
        )
    except (OSError, ProtocolError):
        pass
    from ..memory_fit import fetch_manifest

    known = tuple(dict.fromkeys((*invite.bootstrap, *settings.bootstrap)))
    return await fetch_manifest(Invite(swarm=invite.swarm, bootstrap=known))
