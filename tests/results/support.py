"""A swarm on disk: a chain of signed records over real updates of a tiny model, made in memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distro_node.crypto.hashing import ContentId
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.storage.data_dir import DataDir
from distro_node.node.storage.swarm_store import LocalSnapshot, SwarmStore
from distro_node.node.trainer.optimizer.fingerprint import fingerprint
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.snapshot_rounds import snapshot_round
from distro_node.protocol.codec.schedule import learning_rate
from distro_node.protocol.wire.manifest import CLOSING_ROUNDS, Manifest, RoundSpec, ScheduleSpec
from distro_node.protocol.wire.messages import SnapshotEntry
from simulation.chain import Chain
from simulation.keys import identity
from trainer.support import CPU, make_manifest

LAST = 5
INTERVAL = 2


@dataclass
class Made:
    """What was written to disk."""

    data: DataDir
    manifest: Manifest
    ledger: Ledger
    fingerprints: list[int]
    """After each round; the first is that of the initial parameters."""
    snapshots: dict[int, SnapshotEntry]

    @property
    def history(self) -> Path:
        return self.data.swarm(self.manifest.swarm).history

    def measured(self, losses: dict[int, float]) -> None:
        lines = [json.dumps({"round": r, "time": 0.0, "heldout": x}) for r, x in losses.items()]
        self.history.write_text("\n".join(lines) + "\n")


def make_swarm(
    root: Path,
    rounds: int = LAST,
    made: tuple[Manifest, Sequence[ContentId]] | None = None,
    **changes: Any,
) -> Made:
    """Write a founder's data directory after `rounds` of `LAST` rounds; after all of them the run is
    closed. If `made` is given, its manifest, model and data are used."""
    data = DataDir(root)
    data.create()
    schedule = ScheduleSpec(peak=4e-3, warmup_rounds=2, total_rounds=LAST)
    changes |= {
        "founder": identity(0).peer,
        "schedule": schedule,
        "rounds": RoundSpec(sequences=4, snapshot_interval=INTERVAL),
    }
    if made is None:
        manifest, chunks = make_manifest(data.blobs, **changes)
    else:
        manifest, chunks = replace(made[0], **changes), made[1]
    store = BlobStore(data.blobs)
    chain = Chain(0)
    chain.manifest, chain.ledger = manifest, Ledger(manifest)
    session = TrainingSession(manifest, store, CPU)
    now = session.load(chunks)
    prints, snapshots = [now], {}
    chain.grow(fingerprint=now, updates=[])
    closing = manifest.schedule.closing_round
    for round_ in range(1, rounds + 1):
        due = snapshot_round(round_, INTERVAL, closing)
        trained = session.train(round_, [4 * round_ + i for i in range(4)])
        update = chain.update(
            0,
            update=store.put(trained.body),
            size=len(trained.body),
            tokens=trained.tokens,
            loss=trained.loss,
            fingerprint=now,
        )
        chain.grow(fingerprint=now, updates=[update], snapshot=snapshots.get(due))
        now = session.apply(round_, [trained.body], learning_rate(schedule, round_), True)
        prints.append(now)
        if snapshot_round(round_ + 1, INTERVAL, closing) is not None:
            blobs = session.snapshot()
            snapshots[round_] = SnapshotEntry(round_, store.put(blobs.encode()), blobs.size)
    if rounds == LAST:
        chain.grow(fingerprint=now, updates=[], snapshot=snapshots[LAST])
        for _ in range(CLOSING_ROUNDS - 1):
            chain.grow(fingerprint=now, updates=[])
    assert fingerprint(session.parameters) == now

    directory = data.swarm(manifest.swarm)
    directory.root.mkdir(parents=True)
    directory.manifest.write_bytes(manifest.encode())
    swarm_store = SwarmStore(directory, manifest)
    for round_ in range(len(chain.ledger)):
        swarm_store.keep(chain.ledger.raw(round_))
    kept = [LocalSnapshot(s.round, s.blob.hex(), s.size) for s in snapshots.values()]
    swarm_store.keep_snapshots(kept[-2:])
    swarm_store.write()
    return Made(data, manifest, chain.ledger, prints, snapshots)


def without(made: Made, update: ContentId) -> None:
    """Remove an update from this disk."""
    BlobStore(made.data.blobs).remove(update)


__all__ = ["INTERVAL", "LAST", "Made", "make_swarm", "without"]
