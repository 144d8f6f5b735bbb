"""Taking the trained model out: the newest state that this disk can reproduce, as a checkpoint.

It starts from the newest snapshot at hand and replays the rounds after it, each held against the
fingerprint that the swarm agreed on. The node may be running or not; nothing of it is changed.
"""

from __future__ import annotations

from pathlib import Path

import trio

from ..protocol.chain.ledger import Ledger
from ..protocol.codec.schedule import learning_rate
from ..protocol.wire.errors import ProtocolError
from ..protocol.wire.manifest import Manifest, decode_manifest
from .content.downloads import blob_list_at
from .errors import ExitCode, UserError
from .settings import Exported, ExportSettings
from .storage.blob_store import BlobStore
from .storage.data_dir import DataDir
from .storage.swarm_store import LocalSnapshot, SwarmStore, blob_of
from .trainer.client import TrainerClient, TrainerDied, TrainerFailed, TrainerSpec, open_trainer
from .trainer.explain import explain_trainer


async def export_swarm(settings: ExportSettings) -> Exported:
    """Write the newest state as a Hugging Face checkpoint. Raises `UserError`."""
    data = DataDir(settings.data_dir)
    directory = data.swarm(settings.swarm)
    try:
        manifest = decode_manifest(directory.manifest.read_bytes(), settings.swarm)
    except (OSError, ProtocolError) as error:
        raise _nothing(f"its manifest cannot be read: {error}") from None
    store = BlobStore(data.blobs)
    swarm_store = SwarmStore(directory, manifest)
    ledger = await trio.to_thread.run_sync(lambda: swarm_store.load_ledger(mend=False))
    start = _newest_at_hand(manifest, store, swarm_store, ledger)
    if start is None:
        raise _nothing("its parameters have not been fetched yet")
    _check_target(settings.to)
    spec = TrainerSpec(
        manifest=manifest.encode(), blobs=data.blobs, device="cpu", writable=(settings.to,)
    )
    try:
        async with open_trainer(spec) as trainer:
            round_ = await _replay(trainer, manifest, store, ledger, start)
            await trainer.export(settings.to)
    except (TrainerDied, TrainerFailed) as failure:
        raise explain_trainer(failure, settings.to) from None
    return Exported(directory=settings.to, round=max(0, round_), parameters=manifest.elements)


def _newest_at_hand(
    manifest: Manifest, store: BlobStore, swarm_store: SwarmStore, ledger: Ledger
) -> LocalSnapshot | None:
    size = 4 * manifest.elements
    candidates = [LocalSnapshot(-1, manifest.initial.hex(), size), *swarm_store.snapshots()]
    if ledger.snapshot is not None:
        certified = ledger.snapshot
        candidates.append(LocalSnapshot(certified.round, certified.blob.hex(), certified.size))
    for candidate in sorted(candidates, key=lambda snapshot: snapshot.round, reverse=True):
        fits = candidate.round < len(ledger)
        if fits and blob_list_at(store, "snapshot", blob_of(candidate), candidate.size) is not None:
            return candidate
    return None


async def _replay(
    trainer: TrainerClient,
    manifest: Manifest,
    store: BlobStore,
    ledger: Ledger,
    start: LocalSnapshot,
) -> int:
    """Load `start` and apply what follows, as far as the updates are here; return the last round."""
    blobs = blob_list_at(store, "snapshot", blob_of(start), start.size)
    if blobs is None:
        raise _nothing("a snapshot was removed meanwhile; try again")
    fingerprint = await trainer.load(blobs.chunks)
    last = start.round
    for round_ in range(start.round + 1, len(ledger)):
        record = ledger[round_].record
        if record.fingerprint != fingerprint:
            raise _nothing(f"the stored parameters before round {round_} are not the swarm's")
        bodies = [store.get(entry.update) for entry in record.updates]
        present = [body for body in bodies if body is not None]
        if len(present) < len(bodies):
            break
        rate = learning_rate(manifest.schedule, max(1, round_))
        applied = await trainer.apply(round_, present, rate, own_counted=True)
        fingerprint, last = applied.fingerprint, round_
    return last


def _check_target(directory: Path) -> None:
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(
            ExitCode.USAGE,
            f"{directory} exists and is not an empty directory",
            "name another place with --to",
        )


def _nothing(problem: str) -> UserError:
    return UserError(
        ExitCode.NOTHING_TO_EXPORT,
        f"there is nothing to export: {problem}",
        "join the swarm first and let the node reach the state 'training'",
    )
