"""Where a served model comes from: a state of a joined swarm, or a checkpoint's directory."""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import trio

from ...protocol.wire.manifest import Manifest, SwarmId
from ...protocol.wire.swarm_id import SwarmIdError, swarm_from_text, swarm_text
from ..errors import ExitCode, UserError
from ..results.model_card import PROVENANCE_NAME
from ..results.saved_state import (
    State,
    heldout_losses,
    is_superseded,
    read_swarm,
    reconstructed,
    renewed,
)
from ..settings.tree import StateSelector
from ..storage.data_dir import DataDir, SwarmDir
from ..training.client import (
    TrainerClient,
    TrainerDied,
    TrainerFailed,
    open_checkpoint,
)
from ..training.error_messages import explain_trainer
from ..training.main_memory import free_main_memory
from ..training.task_names import CLASSIFICATION, DIFFUSION, MASKED_LM
from ..util.regular_files import open_regular

_NICE = 10
# The parameters, and a copy of them while they are loaded, in float32.
_LOADING_BYTES_PER_PARAMETER = 8
# The base of adapters in float32, which is read without a copy.
_BYTES_PER_FROZEN_WEIGHT = 4
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_CHARACTERS = 64
# The facts of an export list its members, some hundred bytes each.
_MAX_PROVENANCE_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class ModelName:
    """How a served model is named to clients."""

    name: str
    """The same for every round."""
    round: int | None
    fingerprint: str | None = None
    """Fingerprint of the parameters."""

    @property
    def full(self) -> str:
        """The name with the round, if it is known."""
        return self.name if self.round is None else f"{self.name}@round-{self.round}"

    @property
    def system_fingerprint(self) -> str:
        """What responses state as `system_fingerprint`."""
        parts = [] if self.round is None else [f"round-{self.round}"]
        parts += [] if self.fingerprint is None else [self.fingerprint]
        return "-".join(parts) or self.name


class OpenModel(Protocol):
    """A model in a process of its own."""

    name: ModelName
    trainer: TrainerClient

    async def has_newer(self) -> bool:
        """Whether there is a newer state than this one. Raises `UserError`."""
        ...

    async def take_newer(self) -> None:
        """Load the newer state that `has_newer` has found. After an exception the model cannot be
        used any more. Raises `UserError`, and what a trainer raises."""
        ...


class ModelSource(Protocol):
    """A model that can be opened again and again, for instance after its process has died."""

    def opened(self) -> AbstractAsyncContextManager[OpenModel]:
        """Open the model, and close it with the context. Raises `UserError`."""
        ...


@dataclass(frozen=True, kw_only=True)
class SwarmSource:
    """A state of a swarm that is stored in a data directory."""

    data: DataDir
    swarm: SwarmId
    selector: StateSelector
    threads: int | None = 1
    device: str = "cpu"
    spare_memory: int | None = None
    """Bytes of main memory that have to be free beyond the model's; None: the owner has chosen to load
    it, and nothing is checked."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[SwarmModel]:
        """Reconstruct the state. Raises `UserError`: `USAGE` if the swarm's model continues no text,
        `MODEL_TOO_LARGE` if the memory is too small, and what `read_swarm` and `reconstructed` raise."""
        # First, so that whatever the node stores from here on is newer.
        directory = self.data.swarm(self.swarm)
        seen = await trio.to_thread.run_sync(_stored, directory, self.selector)
        stored = await read_swarm(self.data, self.swarm)
        task = stored.manifest.task
        other = {MASKED_LM: "fills gaps", DIFFUSION: "generates images"}.get(task)
        if task in CLASSIFICATION:
            other = "names classes"
        if other is not None:
            command = "export" if task in CLASSIFICATION else "generate"
            raise UserError(
                ExitCode.USAGE,
                f"this swarm's model {other} and continues no text: it cannot be served",
                f"try it with `distro-node {command}`",
            )
        if self.spare_memory is not None:
            _check_memory(stored.manifest, self.spare_memory)
        async with reconstructed(
            stored, self.selector, threads=self.threads, device=self.device, yields=True
        ) as state:
            yield SwarmModel(self, state, seen)


def _check_memory(manifest: Manifest, spare: int) -> None:
    """Raise `UserError` if the free memory cannot hold the model while it is loaded."""
    needed, free = spare + _LOADING_BYTES_PER_PARAMETER * manifest.elements, free_main_memory()
    needed += _BYTES_PER_FROZEN_WEIGHT * manifest.frozen_elements
    if needed > free:
        raise UserError(
            ExitCode.MODEL_TOO_LARGE,
            f"the model takes {needed / 1e9:.1f} GB of main memory beside the training, and "
            f"{free / 1e9:.1f} GB are free",
            "serve an export on another machine with `distro-node serve`",
        )


class SwarmModel:
    """A state of a swarm, and the ones that follow it."""

    def __init__(self, source: SwarmSource, state: State, seen: _Stored) -> None:
        """`seen`: what was stored before the state was read."""
        self.trainer = state.trainer
        self._source, self._state = source, state
        self._next = state.stored
        self._seen = seen
        self.name = self._named()

    def _named(self) -> ModelName:
        return ModelName(
            name=swarm_text(self._source.swarm),
            round=self._state.round,
            fingerprint=f"{self._state.fingerprint:016x}",
        )

    async def has_newer(self) -> bool:
        """Whether the node has stored a newer snapshot, or measured a better round, since."""
        if self._source.selector.round is not None:
            return False
        selector, directory = self._source.selector, self._state.stored.directory
        stored = await trio.to_thread.run_sync(_stored, directory, selector)
        may_be_better = stored.may_be_better(self._state.round, self._seen)
        # Reading the ledger takes long, so it is read only if something has changed.
        if stored.snapshots == self._seen.snapshots and not may_be_better:
            return False
        self._next = await read_swarm(self._source.data, self._source.swarm)
        self._seen = stored
        return await is_superseded(self._state, self._next, selector)

    async def take_newer(self) -> None:
        """Load the state that the source's selector selects now."""
        self._state = await renewed(self._state, self._next, self._source.selector)
        self.name = self._named()


@dataclass(frozen=True)
class _Stored:
    """What a node has stored so far, as far as it decides which state is served."""

    snapshots: tuple[int, int] | None
    """Changes with the list of snapshots."""
    losses: dict[int, float]
    """The held-out loss of each round; empty unless the best state is served."""

    def may_be_better(self, served: int, earlier: _Stored) -> bool:
        """Whether a round was measured since `earlier` that is as good as the served one. The lowest
        loss of all does not tell: its round may be one that cannot be reconstructed any more."""
        own = self.losses.get(served, math.inf)
        return any(
            loss <= own and earlier.losses.get(round_) != loss
            for round_, loss in self.losses.items()
        )


def _stored(directory: SwarmDir, selector: StateSelector) -> _Stored:
    listed: tuple[int, int] | None = None
    with suppress(OSError):
        facts = directory.snapshots.stat()
        listed = facts.st_mtime_ns, facts.st_size
    # The history of a long run has megabytes, and this is asked every few seconds.
    return _Stored(listed, heldout_losses(directory.history) if selector.best else {})


@dataclass(frozen=True, kw_only=True)
class DirectorySource:
    """A checkpoint in a directory, such as an export."""

    directory: Path
    threads: int | None = 1
    device: str = "cpu"

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[DirectoryModel]:
        """Load the checkpoint. Raises `UserError` (`MODEL_FILES`) if there is none that continues text,
        or its files cannot be used."""
        name = await trio.to_thread.run_sync(_directory_name, self.directory)
        try:
            async with open_checkpoint(
                self.directory, threads=self.threads, device=self.device, nice=_NICE
            ) as trainer:
                yield DirectoryModel(name, trainer)
        except (TrainerDied, TrainerFailed) as failure:
            if isinstance(failure, TrainerFailed) and failure.kind in ("bad_model", "bad_data"):
                raise UserError(
                    ExitCode.MODEL_FILES,
                    f"the model in {self.directory} cannot be served: {failure}",
                    "give a directory that `distro-node export` has written, or a checkpoint of a "
                    "supported architecture (safetensors)",
                ) from None
            raise explain_trainer(failure) from None


class DirectoryModel:
    """A checkpoint, which stays as it is."""

    def __init__(self, name: ModelName, trainer: TrainerClient) -> None:
        self.name = name
        self.trainer = trainer

    async def has_newer(self) -> bool:
        """Return False: a directory is read once."""
        return False

    async def take_newer(self) -> None:
        """Do nothing."""


def _directory_name(directory: Path) -> ModelName:
    """Return the swarm and round that an export's facts state; for other directories their own name."""
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError, SwarmIdError):
        with open_regular(directory / PROVENANCE_NAME) as file:
            facts = json.loads(file.read(_MAX_PROVENANCE_BYTES))
        swarm, round_ = swarm_from_text(facts["swarm"]), facts["round"]
        if type(round_) is int and round_ >= 0:
            return ModelName(
                name=swarm_text(swarm),
                round=round_,
                fingerprint=f"{int(facts['fingerprint'], 16):016x}"[:16],
            )
    plain = _NOT_IN_NAMES.sub("-", directory.resolve().name)[:_NAME_CHARACTERS].strip("-")
    return ModelName(name=plain or "model", round=None)
