"""Reference margins: how much the initial model prefers the chosen answer of each preference pair.

A trainer process computes them once, when the shards are stored, and the shards are stored again with
them (`PairLayout`). They depend, in their last digits, on the machine that computes them.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np

from ...crypto.hashing import ContentId
from ...protocol.wire.blobs import BlobList, decode_any_blob_list
from ...protocol.wire.manifest import DataSpec, Manifest, ShardSpec
from ..errors import ExitCode, UserError
from ..settings.components import TrainerSettings
from ..storage.atomic_write import write_atomically
from ..storage.blob_store import BlobStore
from ..training.answers import InitialModel
from ..training.client import TrainerClient, TrainerSpec, open_trainer
from ..training.preference_pairs import PairLayout
from ..util.progress import ShowProgress
from ..util.regular_files import read_regular
from .shards import ShardWriter

# Pairs in one request to the trainer.
_PAIRS_AT_ONCE = 64
# Seconds after which what is computed so far is stored, so that an interrupted `create` goes on there.
_SAVE_SECONDS = 30.0
_FLOAT_BYTES = 4


async def store_with_margins(
    manifest: Manifest,
    initial: InitialModel,
    store: BlobStore,
    folder: Path,
    device: str,
    progress: ShowProgress,
) -> tuple[list[ShardSpec], ShardSpec]:
    """Store a manifest's shards again, with reference margins, and remove those without; return the
    training shards and the held-out one.

    `folder`: where margins are kept until the swarm is made. Raises `TrainerFailed` and `TrainerDied` as
    a trainer does, and `UserError` (`MANIFEST`) if the model has no finite margin for a pair.
    """
    data = manifest.data
    counts = data.samples, data.samples_in(data.heldout)
    kept = folder / f"margins-{manifest.swarm.hex()}"
    margins = _read(kept, sum(counts))
    if len(margins) < sum(counts):
        what = "comparing pairs with the initial model"
        progress(what, len(margins), sum(counts))
        # Several devices would each compute a part of the pairs.
        settings = TrainerSettings(device=device.split(",")[0])
        spec = TrainerSpec(manifest.encode(), store.root, settings)
        async with open_trainer(spec) as trainer:
            await trainer.load(decode_any_blob_list(initial.blob_list).chunks)
            saved_at = time.monotonic()
            while len(margins) < sum(counts):
                margins += await _next_margins(trainer, len(margins), counts)
                progress(what, len(margins), sum(counts))
                if time.monotonic() - saved_at > _SAVE_SECONDS:
                    saved_at = time.monotonic()
                    write_atomically(kept, np.array(margins, "<f4").tobytes())
        write_atomically(kept, np.array(margins, "<f4").tobytes())
    if not all(map(math.isfinite, margins)):
        raise UserError(
            ExitCode.MANIFEST,
            "the initial model cannot be the reference: it gives the words of a pair no probability",
            "start from another checkpoint, or train it by the task 'sft' first",
        )
    shards = _store_again(data, store, np.array(margins, np.float32))
    return shards[:-1], shards[-1]


async def _next_margins(trainer: TrainerClient, done: int, counts: tuple[int, int]) -> list[float]:
    """Return the margins of the next pairs: the held-out ones follow the training ones."""
    heldout = done >= counts[0]
    start = done - counts[0] if heldout else done
    stop = min(start + _PAIRS_AT_ONCE, counts[heldout])
    return await trainer.margins(range(start, stop), heldout=heldout)


def _read(path: Path, most: int) -> list[float]:
    """Return the margins that an interrupted run stored; an empty list if there are none."""
    try:
        stored = read_regular(path, _FLOAT_BYTES * most)
    except OSError:
        return []
    if len(stored) > _FLOAT_BYTES * most or len(stored) % _FLOAT_BYTES:
        return []
    return np.frombuffer(stored, "<f4").tolist()


def _store_again(data: DataSpec, store: BlobStore, margins: np.ndarray) -> list[ShardSpec]:
    """Store all shards with these margins, and remove each without; return the training shards and,
    last, the held-out one."""
    old = (*data.shards, data.heldout)
    blobs = [{*_list(shard, store).chunks, shard.blob} for shard in old]
    uses = Counter(chain.from_iterable(blobs))
    start, made = 0, []
    for shard, unused in zip(old, blobs, strict=True):
        stop = start + data.samples_in(shard)
        new = _stored(shard, data, store, margins[start:stop])
        made.append(new)
        start = stop
        uses.update((*_list(new, store).chunks, new.blob))
        uses.subtract(unused)
        for blob in unused:
            if not uses[blob]:
                store.remove(blob)
    return made


def _stored(shard: ShardSpec, data: DataSpec, store: BlobStore, margins: np.ndarray) -> ShardSpec:
    """Store a shard with these margins."""
    dtype, length = np.dtype(f"<u{data.token_bytes}"), data.sequence_length
    layout = PairLayout(length, data.token_bytes)
    stored = b"".join(_get(store, chunk) for chunk in _list(shard, store).chunks)
    numbers = np.frombuffer(stored, dtype)
    end = len(margins) * length
    writer = ShardWriter(store, data.token_bytes)
    writer.add(layout.with_margins(numbers[:end].reshape(-1, length), margins).reshape(-1))
    writer.add(numbers[end:])
    (made,) = writer.finish()
    return made


def _list(shard: ShardSpec, store: BlobStore) -> BlobList:
    return decode_any_blob_list(_get(store, shard.blob))


def _get(store: BlobStore, blob: ContentId) -> bytes:
    found = store.get(blob)
    if found is None:
        raise UserError(
            ExitCode.DATA_MISSING,
            f"a part of the training data that was just stored, {blob.hex()[:12]}, is damaged",
            "start the same command again, and check the disk if that repeats",
        )
    return found
