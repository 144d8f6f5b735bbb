"""Export of the trained model: one of its states as a checkpoint that other programs can open.

The checkpoint is written next to its destination and moved there when complete; a failure leaves nothing
behind, and what a killed process leaves is removed by the next export to that place.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import trio

from ...protocol.wire.manifest import Manifest, SwarmId
from ...protocol.wire.swarm_id import swarm_text
from ..errors import ExitCode, UserError
from ..settings.tree import NEWEST, StateSelector
from ..storage.atomic_write import sync
from ..storage.data_dir import DataDir
from ..storage.disk_faults import not_writable
from ..training.error_messages import no_gguf
from ..training.gguf_formats import GgufType, unsupported_family
from ..util.progress import ShowProgress, show_nothing
from .loss_curve import CURVE_NAME
from .model_card import PROVENANCE_NAME, card, loss_image, provenance, provenance_bytes
from .partial_directory import partial_directory, remove_abandoned
from .saved_state import State, heldout_losses, read_swarm, reconstructed, task_scores


@dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """The arguments of `export_swarm`."""

    swarm: SwarmId
    data_dir: Path
    to: Path
    selector: StateSelector = NEWEST
    merged: bool = False
    """For a swarm that trains adapters: whether to export the base model with the adapters merged into
    it, and not the adapters alone."""
    gguf: GgufType | None = None
    """Write a GGUF file with numbers of this type, adapters merged in, and not a checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The result of `export_swarm`."""

    directory: Path
    round: int
    parameters: int
    record: str
    """Id of the record that led to the exported state, in hexadecimal."""
    fingerprint: str
    """Checksum of the exported parameters, in hexadecimal."""


async def export_swarm(settings: ExportSettings, progress: ShowProgress = show_nothing) -> Exported:
    """Write a state of the model with its card, as a Hugging Face checkpoint or as a GGUF file. Raises
    `UserError`."""
    check_target(settings.to)
    stored = await read_swarm(DataDir(settings.data_dir), settings.swarm)
    if settings.merged and stored.manifest.adapter is None:
        raise UserError(
            ExitCode.USAGE,
            "this swarm trains the whole model: there is nothing to merge",
            "leave --merged out",
        )
    if settings.gguf is not None:
        check_gguf(stored.manifest)
    with complete_directory(settings.to) as temporary:
        async with reconstructed(
            stored, settings.selector, writable=(temporary,), progress=progress
        ) as state:
            progress("writing the model", 0, 1)
            await write_model(state, temporary, merged=settings.merged, gguf=settings.gguf)
            return Exported(
                directory=settings.to,
                round=state.round,
                parameters=stored.manifest.elements,
                record=state.record.hex(),
                fingerprint=f"{state.fingerprint:016x}",
            )


def check_gguf(manifest: Manifest) -> None:
    """Raise `UserError` (`NO_GGUF`) if a swarm's model cannot be written as GGUF here."""
    problem = unsupported_family(manifest.model["model_type"])
    if problem is not None:
        raise no_gguf(problem)
    if find_spec("gguf") is None:
        raise UserError(
            ExitCode.NO_GGUF,
            "the package gguf is not installed",
            "install it with: pip install 'distro-node[gguf]'",
        )


async def write_model(
    state: State, directory: Path, *, merged: bool, gguf: GgufType | None = None
) -> None:
    """Write the model and its card into a directory: as a checkpoint, or with `gguf` as a GGUF file with
    numbers of that type. In a swarm that trains adapters, a checkpoint has the adapters alone, unless
    `merged`. Raises `TrainerFailed` and `OSError`."""
    stored = state.stored
    if gguf is None:
        await state.trainer.export(directory, merged=merged)
    else:
        swarm = swarm_text(stored.manifest.swarm)
        description = f"After round {state.round} of {swarm}, record {state.record.hex()}"
        await state.trainer.export_gguf(directory, gguf, description)

    def write_card() -> None:
        history = stored.directory.history
        measured = sorted(heldout_losses(history, stored.ledger).items())
        facts = provenance(
            state,
            heldout=[(round_, loss) for round_, loss in measured if round_ <= state.round],
            scores=task_scores(history, state.fingerprint),
        )
        (directory / PROVENANCE_NAME).write_bytes(provenance_bytes(facts))
        text = card(facts, stored.manifest.model, merged=merged, gguf=gguf)
        (directory / "README.md").write_text(text, encoding="utf-8")
        image = loss_image(facts)
        if image is not None:
            (directory / CURVE_NAME).write_text(image, encoding="utf-8")

    await trio.to_thread.run_sync(write_card)


def check_target(directory: Path) -> None:
    """Raise `UserError` (`USAGE`) unless `directory` is new, or empty but for what killed exports left,
    which is removed."""
    remove_abandoned(directory)
    try:
        # A broken link counts as existing, too.
        taken = os.path.lexists(directory) and (not directory.is_dir() or any(directory.iterdir()))
    except OSError as error:
        raise not_writable(error, directory, "--to") from None
    if taken:
        raise UserError(
            ExitCode.USAGE,
            f"{directory} exists and is not an empty directory",
            "name another place with --to",
        )


@contextlib.contextmanager
def complete_directory(directory: Path) -> Iterator[Path]:
    """Yield a new directory whose content becomes that of `directory` at the end; after a failure it is
    removed. Raises `UserError` (`NOT_WRITABLE`, `DISK_FULL`) if `directory` cannot be written."""
    created: list[Path] = []
    moved: list[Path] = []
    temporary: Path | None = None
    try:
        # If the destination exists and is empty (a mounted disk, for example), files are moved into it.
        is_empty_directory = directory.is_dir()
        for parent in reversed(directory.parents):
            if not is_empty_directory and not parent.exists():
                parent.mkdir()
                created.append(parent)
        place = directory if is_empty_directory else directory.parent
        remove_abandoned(place)
        with partial_directory(place) as temporary:
            yield temporary
            for path in temporary.rglob("*"):
                # A disk or a file server may report only now that it is full.
                sync(path)
            if is_empty_directory:
                for path in temporary.iterdir():
                    moved.append(path.rename(directory / path.name))
                temporary.rmdir()
            else:
                temporary.rename(directory)
    except BaseException as error:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        for path in moved:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    path.unlink()
        for parent in reversed(created):
            with contextlib.suppress(OSError):
                parent.rmdir()
        if isinstance(error, OSError):
            raise not_writable(error, directory, "--to") from None
        raise
