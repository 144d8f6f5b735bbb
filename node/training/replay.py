"""Reconstruction of a past state of the swarm's model in a trainer, from what this disk has.

It starts from a local snapshot and applies the records after it; each state is compared with the
fingerprint that the swarm agreed on. It takes a trainer of its own, apart from the one that trains.

The initial state is that of round -1, and round 0 does not change it. A record has the fingerprint of
the parameters before its round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import trio

from ...protocol.chain.ledger import Ledger
from ...protocol.chain.step_inputs import needed_for
from ...protocol.codec.schedule import learning_rate
from ...protocol.wire.manifest import Manifest
from ..content.downloads import blob_list_at
from ..storage.blob_store import BlobStore
from ..storage.swarm_store import LocalSnapshot, blob_of
from .client import TrainerClient
from .counted_bodies import counted_bodies


class CannotReplay(Exception):
    """The snapshot or an update needed for a state is missing, was removed, or is not the swarm's."""


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A swarm's rounds as far as they are on this disk."""

    manifest: Manifest
    ledger: Ledger
    """The chain; it must not be extended while a state is reconstructed."""
    store: BlobStore

    def last_replayable(self, start: int, end: int | None = None) -> int:
        """Return the last round, up to `end`, that can be replayed from the state after round
        `start` with the updates on this disk."""
        last = start
        limit = len(self.ledger) if end is None else min(len(self.ledger), end + 1)
        # The closing record has no step.
        closing = self.manifest.schedule.closing_round
        limit = limit if closing is None else min(limit, closing)
        for round_ in range(start + 1, limit):
            needed = needed_for(self.ledger, self.ledger[round_].record)
            if not all(self.store.has(each.entry.update) for each in needed):
                break
            last = round_
        return last

    def start_for(self, end: int, snapshots: Iterable[LocalSnapshot]) -> LocalSnapshot | None:
        """Return the latest of these snapshots, sorted from the oldest, from which round `end` can
        be reached."""
        for start in reversed([*snapshots]):
            # A snapshot's own round needs no updates, and neither does round 0.
            if start.round <= end <= max(0, self.last_replayable(start.round, end)):
                return start
        return None


async def replay(
    trainer: TrainerClient, run: StoredRun, start: LocalSnapshot, end: int | None
) -> tuple[int, int]:
    """Load `start` and apply the records up to `end`; None: as long as their updates are on this disk.
    Return the last applied round and the fingerprint after it. Raises `CannotReplay`, and what a trainer
    raises."""
    blobs = await trio.to_thread.run_sync(
        blob_list_at, run.store, "snapshot", blob_of(start), start.size
    )
    if blobs is None:
        raise CannotReplay("a snapshot was removed meanwhile")
    fingerprint = await trainer.load(blobs.chunks)
    return await _replay_from(trainer, run, start.round, fingerprint, end)


class ReplayTrainer:
    """A trainer that holds one past state after another; to reach a later state, it can go on from its
    current one."""

    def __init__(self, trainer: TrainerClient) -> None:
        self.trainer = trainer
        # The round whose state it holds, and the fingerprint; None if unknown.
        self._state: tuple[int, int] | None = None

    async def replay_to(self, run: StoredRun, end: int, snapshots: Sequence[LocalSnapshot]) -> None:
        """Reconstruct the state after round `end`, from these snapshots, sorted from the oldest, or
        from the current state. Raises `CannotReplay`, and what a trainer raises."""
        start = await trio.to_thread.run_sync(run.start_for, end, snapshots)
        # Until everything has succeeded, the state is undefined.
        at, self._state = self._state, None
        if at is not None and await trio.to_thread.run_sync(_is_nearer, run, at[0], start, end):
            self._state = await _replay_from(self.trainer, run, *at, end)
        elif start is not None:
            self._state = await replay(self.trainer, run, start, end)
        else:
            raise CannotReplay("the parameters of that round cannot be rebuilt")


def _is_nearer(run: StoredRun, at: int, start: LocalSnapshot | None, end: int) -> bool:
    """Whether the state after round `at` is a better start than the snapshot."""
    nearest = -1 if start is None else start.round
    return nearest <= at <= end <= max(0, run.last_replayable(at, end))


async def _replay_from(
    trainer: TrainerClient, run: StoredRun, last: int, fingerprint: int, end: int | None
) -> tuple[int, int]:
    """Apply the records after round `last`; the trainer holds the state after that round, with this
    fingerprint."""
    ledger, store = run.ledger, run.store
    for round_ in range(last + 1, len(ledger) if end is None else end + 1):
        record = ledger[round_].record
        _check_fingerprint(record.fingerprint, fingerprint, round_)
        counted = await trio.to_thread.run_sync(counted_bodies, store, needed_for(ledger, record))
        if counted is None:
            if end is not None:
                raise CannotReplay("an update was removed meanwhile")
            break
        # The closing record has no step: the result is the state of the round before it.
        if round_ == run.manifest.schedule.closing_round:
            break
        # Learning rates begin with round 1; round 0 has no updates. This trainer has no update of its
        # own, so `own_counted` has no effect.
        rate = learning_rate(run.manifest.schedule, max(1, round_))
        applied = await trainer.apply(
            round_, counted.bodies, rate, own_counted=True, update_weights=counted.update_weights
        )
        fingerprint, last = applied.fingerprint, round_
    after = max(0, last) + 1
    if after < len(ledger):
        _check_fingerprint(ledger[after].record.fingerprint, fingerprint, after)
    return last, fingerprint


def _check_fingerprint(agreed: int, found: int, round_: int) -> None:
    if agreed != found:
        raise CannotReplay(f"the stored parameters before round {round_} are not the swarm's")
