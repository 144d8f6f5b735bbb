"""A tiny model on bytes, made in memory: the model that the trainer's tests train."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from distro_node.crypto.hashing import ContentId
from distro_node.crypto.identity import PeerId
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.models.initial_parameters import Lora, initialise
from distro_node.node.trainer.models.model import model_config, new_model
from distro_node.node.trainer.optimizer.blocks import Stripe, block_view
from distro_node.node.trainer.optimizer.optimizer import LocalOptimizer
from distro_node.node.trainer.optimizer.orthogonal import Iterations
from distro_node.node.trainer.tasks.text_generation import session_text_model, start_text
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.training.errors import TrainerFailed
from distro_node.node.training.local_policy import DEFAULT_POLICY, LocalPolicy
from distro_node.node.training.memory_options import MemoryOptions
from distro_node.node.training.text_request import TextRequest
from distro_node.protocol.codec.basis import orthonormal_basis
from distro_node.protocol.codec.update import UpdateLayout
from distro_node.protocol.wire.blobs import CHUNK_BYTES, BlobList
from distro_node.protocol.wire.manifest import (
    DataSpec,
    Manifest,
    OptimizerSpec,
    ScheduleSpec,
    ShardSpec,
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

CPU = torch.device("cpu")

TINY_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}


def store_shard(store: BlobStore, tokens: np.ndarray) -> ShardSpec:
    """Put tokens (already of the right width) into the store as a shard."""
    data = tokens.tobytes()
    chunks = tuple(
        store.put(data[start : start + CHUNK_BYTES]) for start in range(0, len(data), CHUNK_BYTES)
    )
    blobs = BlobList(kind="shard", size=len(data), chunks=chunks)
    return ShardSpec(blob=store.put(blobs.encode()), tokens=len(tokens))


def store_byte_tokenizer(store: BlobStore) -> ContentId:
    """Store a tokenizer whose 256 tokens are the bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return store.put(tokenizer.to_str().encode())


def example_text(size: int) -> np.ndarray:
    """Return bytes that can be learned: words of a small vocabulary in random order."""
    words = [b"gradient ", b"momentum ", b"swarm ", b"update\n", b"round ", b"agree "]
    chosen = np.random.default_rng(0).integers(0, len(words), size)
    return np.frombuffer(b"".join(words[i] for i in chosen)[:size], dtype=np.uint8)


def make_manifest(
    root: Path,
    config: dict[str, Any] | None = None,
    optimizer: OptimizerSpec | None = None,
    lora: Lora | None = None,
    **changes: Any,
) -> tuple[Manifest, Sequence[ContentId]]:
    """Return a manifest whose blobs are all in the store at `root`, and its initial snapshot's
    chunks."""
    store = BlobStore(root)
    config = config or TINY_LLAMA
    if lora is None:
        made = initialise(config, 0, None, store, CPU)
    else:
        with TemporaryDirectory() as checkpoint:
            write_checkpoint(Path(checkpoint), config)
            made = initialise(config, 0, Path(checkpoint), store, CPU, lora)
    text = example_text(20_000)
    manifest = Manifest(
        name="tiny",
        model=config,
        parameters=made.table,
        initial=store.put(made.blobs.encode()),
        data=DataSpec(
            sequence_length=32,
            token_bytes=1,
            vocabulary=256,
            shards=(store_shard(store, text[:9000]), store_shard(store, text[9000:18_000])),
            heldout=store_shard(store, text[18_000:]),
            tokenizer=store_byte_tokenizer(store),
        ),
        optimizer=optimizer or OptimizerSpec(),
        schedule=ScheduleSpec(peak=4e-3, warmup_rounds=2, total_rounds=100),
        founder=PeerId(bytes(32)),
        adapter=made.adapter,
    )
    return dataclasses.replace(manifest, **changes), made.blobs.chunks


def by_svd(blocks: torch.Tensor, iterations: Iterations) -> torch.Tensor:
    """Make blocks nearly orthogonal by the polynomials of explicit singular values, in float64."""
    left, values, right = torch.linalg.svd(blocks.double(), full_matrices=False)
    values = values / values.norm(dim=-1, keepdim=True)
    for a, b, c in iterations:
        values = a * values + b * values**3 + c * values**5
    return left * values[:, None, :] @ right * max(blocks.shape[1:]) ** 0.5


def write_checkpoint(directory: Path, config: dict[str, Any]) -> None:
    """Write a trained model as transformers saves it."""
    torch.manual_seed(7)
    new_model(model_config(config), CPU).save_pretrained(directory)


def make_session(
    root: Path,
    *,
    device: torch.device = CPU,
    micro_batch: int | None = None,
    options: MemoryOptions | None = None,
    policy: LocalPolicy = DEFAULT_POLICY,
    **changes: Any,
) -> TrainingSession:
    """Return a session with the initial parameters loaded; `changes` are those of the manifest."""
    made = make_manifest(root, **changes)
    return opened(made, root, device, micro_batch=micro_batch, options=options, policy=policy)


def opened(
    made: tuple[Manifest, Sequence[ContentId]],
    root: Path,
    device: torch.device = CPU,
    **options: Any,
) -> TrainingSession:
    """Return a session of a manifest with its initial parameters loaded."""
    session = TrainingSession(made[0], BlobStore(root), device, **options)
    session.load(made[1])
    return session


@contextmanager
def refused(kind: str, words: str = "") -> Iterator[list[str]]:
    """Expect that the trainer refuses, with this kind and these words, in one line, which is listed."""
    told: list[str] = []
    failure = None
    try:
        yield told
    except TrainerFailed as error:
        failure = error
    assert failure is not None, "it was not refused"
    told.append(str(failure))
    assert (failure.kind, "\n" in told[0]) == (kind, False), repr(failure)
    assert re.search(words, told[0]), told[0]


def train_beside_a_cpu(
    device: torch.device, root: Path, *, rounds: int, optimizer: OptimizerSpec | None = None
) -> None:
    """Train a member on a device and one on the CPU together; check that they hold the same bits in
    each round, and that the one on the device learns."""
    manifest, chunks = make_manifest(root, optimizer=optimizer)
    sessions = [TrainingSession(manifest, BlobStore(root), each) for each in (CPU, device)]
    assert len({session.load(chunks) for session in sessions}) == 1
    before = sessions[0].computation.evaluate(8)
    for round_ in range(1, rounds + 1):
        bodies = [
            session.train(
                round_, list(range(8 * (2 * round_ + me), 8 * (2 * round_ + me + 1)))
            ).body
            for me, session in enumerate(sessions)
        ]
        results = {s.apply(round_, bodies, 0.001953125, own_counted=True) for s in sessions}
        assert len(results) == 1, f"they have other fingerprints after round {round_}"
    assert len({session.snapshot().encode() for session in sessions}) == 1, "other snapshots"
    assert sessions[1].computation.evaluate(8) < before, "the one on the device learns nothing"


def inverse_transform(
    coefficients_NAB: torch.Tensor, matrix_a: torch.Tensor, matrix_b: torch.Tensor
) -> torch.Tensor:
    """Return Aᵀ · C · B for each block; with the orthonormal basis this inverts `forward_transform`."""
    count, a, b = coefficients_NAB.shape
    result = coefficients_NAB
    if b > 1:
        result = (result.reshape(count * a, b) @ matrix_b).view(count, a, b)
    if a > 1:
        result = torch.matmul(matrix_a.T, result)
    return result


def dense_momentum(optimizer: LocalOptimizer, layout: UpdateLayout) -> list[torch.Tensor]:
    """Return the momentum transformed back in float64: (rows, columns) for each tensor."""
    results = []
    for tensor, momentum in zip(layout.tensors, optimizer.momentum, strict=True):
        result = torch.empty(tensor.rows, tensor.columns, dtype=torch.float64)
        whole = Stripe(slice(0, tensor.rows), slice(0, tensor.blocks))
        blocks = momentum.double().view(-1, tensor.block_rows, tensor.block_columns)
        bases = [torch.from_numpy(orthonormal_basis(side)) for side in blocks.shape[1:]]
        view = block_view(result, tensor, whole)
        view.copy_(inverse_transform(blocks, *bases).view(view.shape))
        results.append(result)
    return results


def write_text(
    session: TrainingSession,
    store: BlobStore,
    prompt: str,
    seed: int,
    temperature: float,
    max_tokens: int,
) -> Iterator[str]:
    """Return what the session's model writes, token by token."""
    request = TextRequest(prompt=prompt, seed=seed, temperature=temperature, max_tokens=max_tokens)
    return start_text(session_text_model(session, store), request)[1]
