"""Attention within documents: text before a border has no effect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from distro_node.crypto.hashing import content_id
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.models.model import model_config, new_model
from distro_node.node.trainer.tasks.data import Corpus, read_tokens
from distro_node.node.trainer.tasks.packing import check_attention, document_inputs, starts_after
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.training.errors import TrainerFailed
from distro_node.protocol.wire.manifest import DataSpec, ShardSpec
from trainer.support import CPU, TINY_LLAMA, make_manifest

END = 7
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "n_embd": 32,
    "n_layer": 1,
    "n_head": 2,
    "vocab_size": 256,
    "n_positions": 64,
    "attn_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
}
SOFT_CAPPED: dict[str, Any] = TINY_LLAMA | {
    "model_type": "gemma2",
    "head_dim": 16,
    "sliding_window": 4096,
}


def spec(**changes: Any) -> DataSpec:
    shard = ShardSpec(blob=content_id(b"x"), tokens=1000)
    facts: dict[str, Any] = {
        "sequence_length": 32,
        "token_bytes": 1,
        "vocabulary": 256,
        "shards": (shard,),
        "heldout": shard,
        "tokenizer": content_id(b"t"),
        "end_token": END,
        "attention": "document",
    }
    return DataSpec(**(facts | changes))


@pytest.mark.parametrize("config", [TINY_LLAMA, GPT2, SOFT_CAPPED])
def test_each_document_is_computed_as_if_it_were_alone(config: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = new_model(model_config(config), CPU).eval()
    documents = [[1, 2, 3, END], [END], [50, 60, 70, 80, 90, END], [11, 12]]
    packed = torch.tensor([[token for document in documents for token in document]])
    packed = torch.cat([packed, packed.flip(1)])
    inputs = document_inputs(starts_after(packed, END), model.config)
    assert inputs["position_ids"][0].tolist() == [0, 1, 2, 3, 0, 0, 1, 2, 3, 4, 5, 0, 1]
    with torch.no_grad():
        together = model(input_ids=packed, use_cache=False, **inputs).logits[0]
        across = model(input_ids=packed, use_cache=False).logits[0]
        start = 0
        for document in documents:
            alone = model(input_ids=torch.tensor([document]), use_cache=False).logits[0]
            stop = start + len(document)
            torch.testing.assert_close(together[start:stop], alone, atol=1e-5, rtol=1e-4)
            start = stop
    assert (together - across).abs().max() > 1e-3


def test_a_window_that_slides_within_a_sequence_is_refused() -> None:
    config = model_config(TINY_LLAMA | {"model_type": "mistral", "sliding_window": 16})
    with pytest.raises(TrainerFailed, match="sliding window of 16"):
        check_attention(spec(), config)
    check_attention(spec(sequence_length=16), config)
    check_attention(spec(attention="sequence"), config)


def test_documents_need_an_end() -> None:
    with pytest.raises(ValueError, match="needs an end_token"):
        spec(end_token=None)
    with pytest.raises(ValueError, match="not in the vocabulary"):
        spec(end_token=256)


def test_a_session_trains_within_documents(tmp_path: Path) -> None:
    """With a frequent token as the end token, each token sees little: the loss is that of such a
    mask."""
    manifest, chunks = make_manifest(tmp_path)
    losses = []
    # A space ends what the session takes for documents.
    for attention in ("sequence", "document"):
        data = replace(manifest.data, end_token=32, attention=attention)
        session = TrainingSession(replace(manifest, data=data), BlobStore(tmp_path), CPU)
        session.load(chunks)
        # An untrained model hardly attends to earlier tokens: only sharp scores reveal what it sees.
        with torch.no_grad():
            for parameter in session.parameters:
                parameter.mul_(8.0)
        losses.append(session.evaluate(4))
    assert abs(losses[0] - losses[1]) > 1e-3
    stored = Corpus(manifest.data, BlobStore(tmp_path)).heldout(range(4))
    batch = torch.from_numpy(read_tokens(manifest.data, stored).ids)
    inputs = batch[:, :-1]
    with torch.no_grad():
        borders = document_inputs(starts_after(inputs, 32), session.model.config)
        logits = session.model(input_ids=inputs, use_cache=False, **borders).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    assert losses[1] == pytest.approx(float(expected), rel=1e-5)
