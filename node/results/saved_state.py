"""Reconstruction of a state of the swarm's model from this disk, in a trainer process of its own.

The trainer starts from a local snapshot and replays the rounds after it; after each, it compares the
parameters with the fingerprint that the swarm agreed on. The node may be running or not; its data is not
changed, and nothing waits for it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from ...protocol.chain.ledger import Ledger
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import (
    Manifest,
    OtherVersion,
    SwarmId,
)
from ...protocol.wire.messages import RecordId
from ...protocol.wire.structure import StructureError
from ..content.downloads import blob_list_at
from ..errors import ExitCode, UserError
from ..settings.components import TrainerSettings
from ..settings.tree import StateSelector
from ..storage.blob_store import BlobStore
from ..storage.data_dir import DataDir, SwarmDir, stored_peer
from ..storage.swarm_store import LocalSnapshot, SwarmStore, blob_of
from ..telemetry.task_scores import TaskScores, read_scores
from ..training.client import TrainerClient, TrainerDied, TrainerFailed, TrainerSpec, open_trainer
from ..training.error_messages import explain_trainer
from ..training.replay import CannotReplay, StoredRun, replay
from ..training.task_names import (
    CLASSIFICATION,
    DIFFUSION,
    ImageClassSettings,
    ImageSettings,
    Settings,
    TextClassSettings,
    built_in_settings,
)
from ..util.progress import ShowProgress, show_nothing
from ..util.protocol_version import explain_version

# Niceness of the process: its priority is below that of the owner's own work and the node's training.
_NICE = 10


@dataclass(frozen=True, kw_only=True)
class StoredSwarm(StoredRun):
    """What this disk has of a swarm."""

    snapshots: tuple[LocalSnapshot, ...]
    """The complete snapshots, sorted from the oldest; the initial one has the round -1."""
    directory: SwarmDir


@dataclass(frozen=True, kw_only=True)
class State:
    """A reconstructed state, and the trainer that holds it."""

    stored: StoredSwarm
    trainer: TrainerClient
    round: int
    """0 for the initial parameters."""
    fingerprint: int

    @property
    def record(self) -> RecordId:
        """The id of the record that led to it."""
        return self.stored.ledger.parent(self.round + 1)

    @property
    def agreed(self) -> bool:
        """Whether the next record confirms these parameters."""
        return self.round + 1 < len(self.stored.ledger)


async def read_swarm(data: DataDir, swarm: SwarmId) -> StoredSwarm:
    """Return what this disk has of a swarm. Raises `UserError`: `NOTHING_TO_EXPORT` if it has no usable
    manifest, no record or no complete snapshot, `VERSION` for another protocol version."""
    directory = data.swarm(swarm)
    try:
        manifest = directory.read_manifest(swarm)
    except OtherVersion as error:
        raise explain_version(error) from None
    except (OSError, ProtocolError) as error:
        raise no_model_error(f"its manifest cannot be read: {error}") from None
    swarm_store = SwarmStore(directory, manifest, stored_peer(data))
    ledger = await trio.to_thread.run_sync(lambda: swarm_store.load_ledger(repair=False))
    if len(ledger) == 0:
        raise no_model_error(
            "its ledger is missing, and without it no state can be verified as the swarm's"
        )
    store = BlobStore(data.blobs)
    size = 4 * manifest.elements
    candidates = [LocalSnapshot(-1, manifest.initial.hex(), size), *swarm_store.snapshots()]
    if ledger.snapshot is not None:
        certified = ledger.snapshot
        candidates.append(LocalSnapshot(certified.round, certified.blob.hex(), certified.size))

    def complete_snapshots() -> dict[int, LocalSnapshot]:
        return {
            each.round: each
            for each in candidates
            if each.whole
            and each.round < len(ledger)
            and blob_list_at(store, "snapshot", blob_of(each), each.size) is not None
        }

    by_round = await trio.to_thread.run_sync(complete_snapshots)
    if not by_round:
        raise no_model_error("its parameters have not been downloaded yet")
    snapshots = tuple(by_round[round_] for round_ in sorted(by_round))
    return StoredSwarm(
        manifest=manifest, ledger=ledger, store=store, snapshots=snapshots, directory=directory
    )


@asynccontextmanager
async def reconstructed(
    stored: StoredSwarm,
    selector: StateSelector,
    *,
    writable: Sequence[Path] = (),
    readable: Sequence[Path] = (),
    threads: int | None = None,
    device: str = "cpu",
    yields: bool = False,
    progress: ShowProgress = show_nothing,
) -> AsyncIterator[State]:
    """Start a low-priority trainer process that holds the reconstructed state; `yields` as in
    `TrainerSpec`. Raises `UserError`."""
    start, end = await trio.to_thread.run_sync(_plan, stored, selector)
    spec = TrainerSpec(
        manifest=stored.manifest.encode(),
        blobs=stored.store.root,
        settings=TrainerSettings(device=device, threads=threads),
        writable=tuple(writable),
        readable=tuple(readable),
        nice=_NICE,
        yields=yields,
    )
    path = writable[0] if writable else stored.store.root
    try:
        async with showing_start(open_trainer(spec), progress) as trainer:
            loading = "loading the model's state"
            progress(loading, 0, 1)
            round_, fingerprint = await replay(trainer, stored, start, end)
            progress(loading, 1, 1)
            yield State(
                stored=stored, trainer=trainer, round=max(0, round_), fingerprint=fingerprint
            )
    except CannotReplay as problem:
        raise no_model_error(
            str(problem),
            "run the command again, or join the swarm and let the node reach the state 'training'",
        ) from None
    except (TrainerDied, TrainerFailed) as failure:
        raise explain_trainer(failure, path) from None


@asynccontextmanager
async def showing_start(
    trainer: AbstractAsyncContextManager[TrainerClient], progress: ShowProgress
) -> AsyncIterator[TrainerClient]:
    """Start a trainer, which takes seconds because it loads PyTorch, and show that."""
    starting = "starting the trainer"
    progress(starting, 0, 1)
    async with trainer as client:
        progress(starting, 1, 1)
        yield client


async def is_superseded(state: State, stored: StoredSwarm, selector: StateSelector) -> bool:
    """Whether the selector now selects another state than this one: a newer snapshot, or a better
    round."""
    if selector.best:
        return await trio.to_thread.run_sync(_best_round, stored) != state.round
    return selector.round is None and stored.snapshots[-1].round > state.round


async def renewed(state: State, stored: StoredSwarm, selector: StateSelector) -> State:
    """Return the state that is selected now, in the same trainer. Raises `UserError`, and what a trainer
    raises; the trainer's parameters are undefined then."""
    start, end = await trio.to_thread.run_sync(_plan, stored, selector)
    try:
        round_, fingerprint = await replay(state.trainer, stored, start, end)
    except CannotReplay as problem:
        raise no_model_error(str(problem)) from None
    return State(
        stored=stored, trainer=state.trainer, round=max(0, round_), fingerprint=fingerprint
    )


def _plan(stored: StoredSwarm, selector: StateSelector) -> tuple[LocalSnapshot, int | None]:
    """Return the snapshot to start from, and the round to replay to (None: as far as possible). Raises
    `UserError` (`NOTHING_TO_EXPORT`) if no snapshot here leads to that round."""
    if selector.best:
        end = _best_round(stored)
    elif selector.round is not None:
        end = selector.round
    else:
        return stored.snapshots[-1], None
    start = stored.start_for(end, stored.snapshots)
    if start is not None:
        return start, end
    raise no_model_error(
        f"the state of round {end:,} is no longer stored here, or not reached yet; what can be rebuilt "
        f"from this disk: {_rebuildable_rounds(stored)}",
        "name one of those with --round, or leave it out for the newest",
    )


def _rebuildable_rounds(stored: StoredSwarm) -> str:
    intervals: list[list[int]] = []
    for start in stored.snapshots:
        first, last = max(0, start.round), max(0, stored.last_replayable(start.round))
        if intervals and first <= intervals[-1][1] + 1:
            intervals[-1][1] = max(last, intervals[-1][1])
        else:
            intervals.append([first, last])
    texts = [f"{a:,}" if a == b else f"{a:,} to {b:,}" for a, b in intervals]
    return "rounds " + ", ".join(texts)


def _best_round(stored: StoredSwarm) -> int:
    """Return the round with the lowest held-out loss among those that can be reconstructed. Raises
    `UserError` (`NOTHING_TO_EXPORT`) if no such loss is known."""
    within = [(max(0, each.round), stored.last_replayable(each.round)) for each in stored.snapshots]
    measured = {
        round_: loss
        for round_, loss in heldout_losses(stored.directory.history, stored.ledger).items()
        if any(first <= round_ <= last for first, last in within)
    }
    if not measured:
        raise no_model_error(
            "no held-out loss is known for the stored states, so none is the best",
            "name a round with --round, or leave --best out for the newest",
        )
    return min(measured, key=lambda round_: (measured[round_], -round_))


def heldout_losses(history: Path, ledger: Ledger | None = None) -> dict[int, float]:
    """Return the last measured held-out loss of each round in a history. With a ledger, losses of other
    parameters than those that it states are left out: they were measured on a chain that was abandoned
    later."""
    found: dict[int, float] = {}
    with suppress(OSError), history.open("rb") as file:
        for line in file:
            with suppress(ValueError, KeyError, TypeError, OverflowError, RecursionError):
                entry = json.loads(line)
                round_, loss = int(entry["round"]), float(entry["heldout"])
                if loss == loss and (ledger is None or _is_of_chain(entry, round_, ledger)):
                    found[round_] = loss
    return found


def _is_of_chain(measured: dict[str, Any], round_: int, ledger: Ledger) -> bool:
    # Earlier releases have not stated the parameters, and the newest state has no record after it yet.
    if "parameters" not in measured or not 0 <= round_ < len(ledger) - 1:
        return True
    return int(measured["parameters"], 16) == ledger[round_ + 1].record.fingerprint


def task_scores(history: Path, fingerprint: int) -> list[TaskScores]:
    """Return from a history the scores of the state with this fingerprint, the oldest first."""
    found = []
    with suppress(OSError), history.open("rb") as file:
        for line in file:
            # This JSON key occurs in no other line, and a history has one line per round.
            if b'"scores"' not in line:
                continue
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                scores = read_scores(json.loads(line)["scores"])
                if scores is not None and scores.fingerprint == f"{fingerprint:016x}":
                    found.append(scores)
    return found


def image_settings(manifest: Manifest) -> ImageSettings | None:
    """Return the image settings of a swarm; None if its model draws no images. Raises `UserError`
    (`NOTHING_TO_EXPORT`) for settings that no member could use."""
    settings = _settings(manifest) if manifest.task == DIFFUSION else None
    return settings if isinstance(settings, ImageSettings) else None


def class_settings(manifest: Manifest) -> ImageClassSettings | TextClassSettings | None:
    """Return the settings of a swarm whose model names classes; None for other swarms. Raises as
    `image_settings` does."""
    settings = _settings(manifest) if manifest.task in CLASSIFICATION else None
    return settings if isinstance(settings, (ImageClassSettings, TextClassSettings)) else None


def _settings(manifest: Manifest) -> Settings:
    try:
        return built_in_settings(manifest.task, manifest.task_settings)
    except StructureError as error:
        raise no_model_error(f"its manifest cannot be used: {error}") from None


def no_model_error(
    problem: str, remedy: str = "join the swarm first and let the node reach the state 'training'"
) -> UserError:
    """Return the error to raise if no (such) state of the model is available."""
    return UserError(
        ExitCode.NOTHING_TO_EXPORT,
        f"no model is available: {problem}",
        remedy,
    )
