"""No tensor of a checkpoint is dropped silently, and every swarm that starts can be joined."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.models.initial_parameters import initialise
from distro_node.node.training.errors import TrainerFailed
from safetensors.torch import load_file, save_file
from trainer.support import CPU, TINY_LLAMA, write_checkpoint
from trainer.test_model import TINY_GPT2
from transformers import BertConfig, BertForPreTraining

Tensors = dict[str, torch.Tensor]
GATE = "model.layers.0.mlp.gate_proj.weight"
UNTIED = TINY_LLAMA | {"tie_word_embeddings": False}


def edited(root: Path, config: dict[str, Any], edit: Callable[[Tensors], object]) -> Path:
    """Return a checkpoint with modified tensors."""
    write_checkpoint(root, config)
    tensors = load_file(root / "model.safetensors")
    edit(tensors)
    save_file(tensors, root / "model.safetensors", metadata={"format": "pt"})
    return root


def float8(tensors: Tensors) -> None:
    tensors[GATE] = tensors[GATE].to(torch.float8_e4m3fn)
    tensors[GATE + "_scale_inv"] = torch.ones(1, 1)


def scales_alone(tensors: Tensors) -> None:
    tensors[GATE + "_scale_inv"] = torch.ones(1, 1)


def int8(tensors: Tensors) -> None:
    tensors[GATE] = (100 * tensors[GATE]).to(torch.int8)


def another_layer(tensors: Tensors) -> None:
    for name in list(tensors):
        if ".layers.0." in name:
            tensors[name.replace(".0.", ".1.")] = tensors[name].clone()


def named(*names: str) -> Callable[[Tensors], None]:
    def edit(tensors: Tensors) -> None:
        tensors.update({name: torch.ones(2, 2) for name in names})

    return edit


ATTENTION = "model.layers.0.self_attn."


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (float8, ("F8_E4M3", GATE, "quantised", "original weights")),
        (scales_alone, ("does not describe", GATE + "_scale_inv", "quantised")),
        (int8, ("I8", GATE, "quantised")),
        (another_layer, ("does not describe", "model.layers.1.", "and 6 more", "config.json")),
        (named(ATTENTION + "q_proj.bias"), ("does not describe", "q_proj.bias", "config.json")),
        (named(ATTENTION + "q_norm.weight"), ("does not describe", "q_norm.weight")),
        (named(ATTENTION + "q_proj.lora_A.weight"), ("lora_A", "merge the adapter")),
        (named("v_head.summary.weight"), ("v_head", "head of another task")),
        (named("score.weight"), ("score.weight", "head of another task")),
    ],
)
def test_what_has_no_place_is_named(
    tmp_path: Path, edit: Callable[[Tensors], object], words: tuple[str, ...]
) -> None:
    directory = edited(tmp_path / "base", TINY_LLAMA, edit)
    with pytest.raises(TrainerFailed) as caught:
        initialise(TINY_LLAMA, 0, directory, BlobStore(tmp_path / "blobs"), CPU)
    assert caught.value.kind == "bad_model"
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_tables_that_follow_from_the_configuration_are_no_loss(tmp_path: Path) -> None:
    old = edited(
        tmp_path / "llama", TINY_LLAMA, named("model.layers.0.self_attn.rotary_emb.inv_freq")
    )
    initialise(TINY_LLAMA, 0, old, BlobStore(tmp_path / "blobs"), CPU)

    def masks(tensors: Tensors) -> None:
        tensors["transformer.h.0.attn.bias"] = torch.ones(1, 1, 64, 64, dtype=torch.uint8)
        tensors["transformer.h.0.attn.masked_bias"] = torch.tensor(-1e4)

    old = edited(tmp_path / "gpt2", TINY_GPT2, masks)
    initialise(TINY_GPT2, 0, old, BlobStore(tmp_path / "blobs"), CPU)
    keys = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    bert = {key: TINY_LLAMA[key] for key in (*keys, "vocab_size", "max_position_embeddings")}
    BertForPreTraining(BertConfig(**bert)).save_pretrained(tmp_path / "bert")
    bert |= {"model_type": "bert"}
    initialise(bert, 0, tmp_path / "bert", BlobStore(tmp_path / "blobs"), CPU)


def test_a_head_of_its_own_beside_tied_embeddings(tmp_path: Path) -> None:
    def head(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = torch.randn(256, 32)

    store = BlobStore(tmp_path / "blobs")
    with pytest.raises(
        TrainerFailed, match=r"lm_head.*tie_word_embeddings.*set it to false"
    ) as caught:
        initialise(TINY_LLAMA, 0, edited(tmp_path / "base", TINY_LLAMA, head), store, CPU)
    assert caught.value.kind == "bad_model"
    # The remedy in the message works.
    made = initialise(UNTIED, 0, tmp_path / "base", store, CPU)
    assert "lm_head.weight" in {spec.name for spec in made.table}

    def same(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    made = initialise(TINY_LLAMA, 0, edited(tmp_path / "same", TINY_LLAMA, same), store, CPU)
    assert "lm_head.weight" not in {spec.name for spec in made.table}


@pytest.mark.parametrize("index", ['{"weight_map": {"a": "../x"}}', "[", "{}", '{"weight_map": 3}'])
def test_an_index_that_cannot_be_meant(tmp_path: Path, index: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY_LLAMA))
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(TrainerFailed, match="not a list of files") as caught:
        initialise(TINY_LLAMA, 0, tmp_path, BlobStore(tmp_path / "blobs"), CPU)
    assert caught.value.kind == "bad_model"
