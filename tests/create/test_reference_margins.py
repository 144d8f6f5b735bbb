"""Reference margins in the shards: each at its pair, once, also after an interruption."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from distro_node.crypto.hashing import ContentId
from distro_node.node.create import reference_margins
from distro_node.node.create.reference_margins import store_with_margins
from distro_node.node.create.shards import ShardWriter
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.tasks.data import Corpus
from distro_node.node.trainer.tasks.stored_pairs import read_pairs
from distro_node.node.training.answers import InitialModel
from distro_node.node.training.errors import TrainerDied
from distro_node.node.training.preference_pairs import PairLayout
from distro_node.protocol.wire.blobs import BlobList
from distro_node.protocol.wire.manifest import Manifest
from simulation.formats import MANIFEST

LENGTH = 16
LAYOUT = PairLayout(LENGTH, 2)
SHARDS = (70, 5, 9)
"""Pairs in the two training shards and in the held-out one."""
INITIAL = InitialModel((), BlobList("snapshot", 4, (ContentId(bytes(32)),)).encode(), 4)


@dataclass
class Trainer:
    """A trainer whose margin of a pair is its number, plus 1000 if it is held out."""

    asked: list[int] = field(default_factory=list)
    dies_after: int | None = None
    value: Callable[[float], float] = float

    async def load(self, chunks: Sequence[ContentId]) -> None:
        assert len(chunks) == 1

    async def margins(self, samples: Sequence[int], *, heldout: bool) -> list[float]:
        if self.dies_after is not None and len(self.asked) >= self.dies_after:
            raise TrainerDied("it was killed")
        self.asked += samples
        return [self.value(1000 * heldout + sample) for sample in samples]


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Trainer:
    made = Trainer()

    @asynccontextmanager
    async def open_trainer(spec: Any) -> AsyncIterator[Trainer]:
        assert spec.settings.device == "cuda:0"
        yield made

    monkeypatch.setattr(reference_margins, "open_trainer", open_trainer)
    return made


def rows(count: int, seed: int) -> np.ndarray:
    chance = np.random.default_rng(seed)
    made = chance.integers(0, 200, (count, LENGTH)).astype(np.uint32)
    made[:, -2:] = 0
    return made


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    store = BlobStore(tmp_path / "blobs")
    made = []
    for seed, count in enumerate(SHARDS):
        writer = ShardWriter(store, 2)
        writer.add(rows(count, seed).reshape(-1))
        writer.add(np.array([7]))
        made += writer.finish()
    data = replace(
        MANIFEST.data,
        sequence_length=LENGTH,
        token_bytes=2,
        vocabulary=200,
        shards=tuple(made[:2]),
        heldout=made[2],
        marked=True,
        attention="sequence",
    )
    return replace(MANIFEST, task="dpo", data=data)


def stored(root: Path, manifest: Manifest) -> Manifest:
    async def run() -> Manifest:
        store, shown = BlobStore(root / "blobs"), []
        shards, heldout = await store_with_margins(
            *(manifest, INITIAL, store, root, "cuda:0,cuda:1"),
            lambda *progress: shown.append(progress[1:]),
        )
        assert not shown or shown[-1] == (84, 84)
        return replace(manifest, data=replace(manifest.data, shards=tuple(shards), heldout=heldout))

    return trio.run(run)


def check(root: Path, manifest: Manifest) -> None:
    """Check that each pair has its margin, and is otherwise what it was."""
    corpus = Corpus(manifest.data, BlobStore(root / "blobs"))
    for samples, first, expected in (
        (corpus.training(range(75)), 0, np.concatenate([rows(70, 0), rows(5, 1)])),
        (corpus.heldout(range(9)), 1000, rows(9, 2)),
    ):
        ids, _, margins = read_pairs(manifest.data, samples)
        assert margins.tolist() == [first + number for number in range(len(samples))]
        assert (ids == LAYOUT.halves(expected)).all()
    assert manifest.data.shards[0].tokens == 70 * LENGTH + 1


def test_each_pair_gets_its_margin(trainer: Trainer, manifest: Manifest, tmp_path: Path) -> None:
    before = set(BlobStore(tmp_path / "blobs").ids())
    made = stored(tmp_path, manifest)
    check(tmp_path, made)
    assert trainer.asked == [*range(75), *range(9)]
    # Of the shards without margins nothing is left.
    after = set(BlobStore(tmp_path / "blobs").ids())
    assert len(after) == len(before)
    assert not after & before


def test_it_goes_on_where_it_was(
    trainer: Trainer, manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_margins, "_SAVE_SECONDS", 0.0)
    trainer.dies_after = 75
    with pytest.raises(TrainerDied):
        stored(tmp_path, manifest)
    trainer.dies_after, trainer.asked = None, []
    check(tmp_path, stored(tmp_path, manifest))
    assert trainer.asked == [*range(9)]


@pytest.mark.parametrize("size", [3, 4 * 85])
def test_a_damaged_file_is_made_again(
    trainer: Trainer, manifest: Manifest, tmp_path: Path, size: int
) -> None:
    (tmp_path / f"margins-{manifest.swarm.hex()}").write_bytes(bytes(size))
    check(tmp_path, stored(tmp_path, manifest))
    assert len(trainer.asked) == 84


def test_a_model_without_finite_margins_is_no_reference(
    trainer: Trainer, manifest: Manifest, tmp_path: Path
) -> None:
    trainer.value = lambda value: math.nan if value == 3 else value
    with pytest.raises(UserError) as refused:
        stored(tmp_path, manifest)
    assert refused.value.code == ExitCode.MANIFEST
    assert "cannot be the reference" in refused.value.problem


def test_equal_shards_are_stored_once_more(
    trainer: Trainer, manifest: Manifest, tmp_path: Path
) -> None:
    """A shard that another one equals must not vanish with it."""
    data = replace(manifest.data, shards=(manifest.data.shards[0],) * 2)
    made = stored_equal(tmp_path, replace(manifest, data=data), trainer)
    corpus = Corpus(made.data, BlobStore(tmp_path / "blobs"))
    _, _, margins = read_pairs(made.data, corpus.training(range(140)))
    assert margins.tolist() == [number % 70 for number in range(140)]


def stored_equal(root: Path, manifest: Manifest, trainer: Trainer) -> Manifest:
    trainer.value = lambda value: value % 70 if value < 1000 else value

    async def run() -> Manifest:
        shards, heldout = await store_with_margins(
            *(manifest, INITIAL, BlobStore(root / "blobs"), root, "cuda:0"), lambda *_: None
        )
        return replace(manifest, data=replace(manifest.data, shards=tuple(shards), heldout=heldout))

    return trio.run(run)
