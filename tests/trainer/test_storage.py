"""Snapshots and training data, from the blob store and into it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from distro_node.crypto.hashing import ContentId
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.models.snapshot import read_snapshot, write_snapshot
from distro_node.node.trainer.tasks.data import Corpus, read_tokens
from distro_node.node.training.errors import TrainerFailed
from distro_node.protocol.wire.blobs import CHUNK_BYTES, decode_blob_list
from distro_node.protocol.wire.manifest import DataSpec
from trainer.support import refused, store_shard

# A little more than one chunk, with a tensor across the border.
SHAPES = [(3, 5), (1000, 600), (), (600, 1000)]


def tensors(seed: int | None = None) -> list[torch.Tensor]:
    if seed is None:
        return [torch.zeros(shape) for shape in SHAPES]
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def test_round_trip(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    blobs = write_snapshot(tensors(1), store)
    assert blobs.size == 4 * (15 + 1 + 1_200_000)
    assert len(blobs.chunks) == 2
    decode_blob_list(blobs.encode(), "snapshot", blobs.size)
    target = tensors()
    read_snapshot(target, store, blobs.chunks)
    assert all(map(torch.equal, tensors(1), target))


def test_the_bytes_are_float32_little_endian_in_order(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    values = [torch.tensor([[1.0, -2.0], [0.5, 3.0]]).T, torch.tensor(7.0)]
    (chunk,) = write_snapshot(values, store).chunks
    assert store.get(chunk) == np.array([1, 0.5, -2, 3, 7], dtype="<f4").tobytes()


def test_exactly_full_chunks(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    whole = [torch.ones(CHUNK_BYTES // 4), torch.ones(CHUNK_BYTES // 4)]
    blobs = write_snapshot(whole, store)
    assert len(blobs.chunks) == 2
    target = [torch.zeros(CHUNK_BYTES // 2)]
    read_snapshot(target, store, blobs.chunks)
    assert (target[0] == 1).all()


@pytest.mark.parametrize("fault", ["missing", "count", "size", "nan", "inf", "corrupt"])
def test_a_bad_snapshot_changes_nothing(tmp_path: Path, fault: str) -> None:
    store = BlobStore(tmp_path)
    parameters = tensors(1)
    if fault in ("nan", "inf"):
        parameters[3][-1, -1] = float(fault)
    chunks = list(write_snapshot(parameters, store).chunks)
    match fault:
        case "missing":
            store.remove(chunks[1])
        case "count":
            chunks.append(chunks[1])
        case "size":
            chunks[1] = chunks[0]
        case "corrupt":
            path = store.path(chunks[1])
            path.write_bytes(b"\1" + path.read_bytes()[1:])
    target = tensors(2)
    with refused("bad_snapshot"):
        read_snapshot(target, store, chunks)
    assert all(map(torch.equal, tensors(2), target))


def corpus_at(root: Path, width: int = 2) -> tuple[Corpus, DataSpec, np.ndarray]:
    """Make two shards; the first one's tokens extend over three chunks."""
    store = BlobStore(root)
    kind = {1: "u1", 2: "<u2", 4: "<u4"}[width]
    long = (np.arange(2 * CHUNK_BYTES // width + 1000) % 251).astype(kind)
    short = np.arange(100, 200).astype(kind)
    spec = DataSpec(
        sequence_length=99,
        token_bytes=width,  # type: ignore[arg-type]  # one of 1, 2, 4
        vocabulary=251,
        shards=(store_shard(store, long), store_shard(store, short)),
        heldout=store_shard(store, short),
        tokenizer=ContentId(bytes(32)),
    )
    return Corpus(spec, store), spec, long


@pytest.mark.parametrize("width", [1, 2, 4])
def test_every_sample_is_the_right_tokens_across_chunk_borders(tmp_path: Path, width: int) -> None:
    corpus, spec, long = corpus_at(tmp_path, width)
    first = spec.samples_in(spec.shards[0])
    border = CHUNK_BYTES // width // 99
    samples = [0, border - 1, border, border + 1, 2 * border, first - 1]
    read = read_tokens(spec, corpus.training([*samples, first])).ids
    assert read.dtype == np.int64
    for row, sample in zip(read, samples, strict=False):
        np.testing.assert_array_equal(row, long[sample * 99 : sample * 99 + 100])
    np.testing.assert_array_equal(read[-1], np.arange(100, 200))
    assert spec.samples == first + 1


def test_held_out_and_nothing(tmp_path: Path) -> None:
    corpus, spec, _ = corpus_at(tmp_path)
    assert corpus.heldout_samples == 1
    held = read_tokens(spec, corpus.heldout([0]))
    np.testing.assert_array_equal(held.ids[0], np.arange(100, 200))
    assert held.learned is None
    assert read_tokens(spec, corpus.training([])).ids.shape == (0, 100)
    with refused("bad_data", "token 199"):
        read_tokens(dataclasses.replace(spec, vocabulary=199), corpus.heldout([0]))
    for sample in (-1, 10**9):
        with refused("bad_data", "sample"):
            corpus.training([sample])


def test_marks_lie_above_the_token(tmp_path: Path) -> None:
    _, spec, _ = corpus_at(tmp_path)
    spec = dataclasses.replace(spec, sequence_length=3, marked=True)
    numbers = np.array([250 | 1 << 15, 7, 8 | 1 << 14, 9 | 3 << 14], "<u2")
    tokens = read_tokens(spec, [numbers.tobytes()])
    assert tokens.ids.tolist() == [[250, 7, 8, 9]]
    assert tokens.begins is not None
    assert tokens.begins.tolist() == [[True, False, False, True]]
    assert tokens.learned is not None
    assert tokens.learned.tolist() == [[False, False, True, True]]
    with pytest.raises(TrainerFailed, match="token 251"):
        read_tokens(spec, [np.array([251, 0, 0, 0], "<u2").tobytes()])
    with pytest.raises(ValueError, match="1 bytes do not hold"):
        dataclasses.replace(spec, token_bytes=1)


@pytest.mark.parametrize("fault", ["list", "chunk", "cut", "rotten", "size"])
def test_missing_bytes(tmp_path: Path, fault: str) -> None:
    """They are not trained on but fetched again."""
    _, spec, _ = corpus_at(tmp_path)
    store, shard = BlobStore(tmp_path), spec.heldout
    listed = store.get(shard.blob) or b""
    (chunk,) = decode_blob_list(listed, "shard", shard.tokens * 2).chunks
    sound = store.get(chunk) or b""
    match fault:
        case "list":
            store.remove(shard.blob)
        case "chunk":
            store.remove(chunk)
        case "cut":
            store.path(chunk).write_bytes(b"12")
        case "rotten":
            # Tokens within the vocabulary: only the hash reveals the change.
            store.path(chunk).write_bytes(b"\x07" + sound[1:])
        case "size":
            shard = dataclasses.replace(shard, tokens=shard.tokens + 1)
    corpus = Corpus(dataclasses.replace(spec, heldout=shard), store)
    with refused("bad_data" if fault == "size" else "missing_data"):
        corpus.heldout([0])
    if fault == "rotten":
        assert not store.has(chunk)
        store.put(sound)
        assert corpus.heldout([0])[0] == np.arange(100, 200).astype("<u2").tobytes()
