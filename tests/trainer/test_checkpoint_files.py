"""A checkpoint's files: what is read is exact and whole, and what is damaged or odd is named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.models.initial_parameters import initialise
from distro_node.node.training.errors import TrainerFailed
from safetensors.torch import load_file, save_file
from trainer.support import CPU, TINY_LLAMA, refused, write_checkpoint
from trainer.test_adapters import TINY_GPT2
from transformers import BertConfig, BertForPreTraining

Tensors = dict[str, torch.Tensor]
GATE = "model.layers.0.mlp.gate_proj.weight"


def edited(
    root: Path, edit: Callable[[Tensors], object], config: dict[str, Any] = TINY_LLAMA
) -> Path:
    """Return a checkpoint with modified tensors."""
    write_checkpoint(root, config)
    tensors = load_file(root / "model.safetensors")
    edit(tensors)
    save_file(tensors, root / "model.safetensors", metadata={"format": "pt"})
    return root


def int8(tensors: Tensors) -> None:
    tensors[GATE] = (100 * tensors[GATE]).to(torch.int8)


def begun(directory: Path, root: Path) -> object:
    """Return what a swarm begins with that is made from a checkpoint."""
    return initialise(TINY_LLAMA, 0, directory, BlobStore(root / "blobs"), CPU).blobs


def sharded(directory: Path) -> Path:
    """Save a checkpoint in two shards, with an index; return the folder."""
    write_checkpoint(directory, TINY_LLAMA)
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    weight_map = {}
    for number, keys in enumerate((list(tensors)[:4], list(tensors)[4:])):
        name = f"model-{number}.safetensors"
        save_file({key: tensors[key] for key in keys}, directory / name, {"format": "pt"})
        weight_map |= dict.fromkeys(keys, name)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


@pytest.mark.parametrize("stated", [None, "bfloat16"])
def test_no_weight_is_rounded_to_the_type_of_another(tmp_path: Path, stated: str | None) -> None:
    """The library takes the first tensor's type, or the one that config.json states, for all."""

    def reduce_first(tensors: Tensors) -> None:
        # Its values are the same in both types.
        name = "lm_head.weight" if "lm_head.weight" in tensors else "model.embed_tokens.weight"
        tensors[name] = tensors[name].to(torch.bfloat16)

    def round_first(tensors: Tensors) -> None:
        reduce_first(tensors)
        for name in tensors:
            tensors[name] = tensors[name].to(torch.float32)

    mixed = edited(tmp_path / "mixed", reduce_first)
    if stated is not None:
        config = json.loads((mixed / "config.json").read_text()) | {"dtype": stated}
        (mixed / "config.json").write_text(json.dumps(config))
    exact = edited(tmp_path / "exact", round_first)
    assert begun(mixed, tmp_path) == begun(exact, tmp_path)


def test_shards_may_be_links_and_change_nothing(tmp_path: Path) -> None:
    real = sharded(tmp_path / "real")
    linked = tmp_path / "linked"
    linked.mkdir()
    for path in real.iterdir():
        (linked / path.name).symlink_to(path)
    write_checkpoint(tmp_path / "single", TINY_LLAMA)
    assert begun(linked, tmp_path) == begun(real, tmp_path) == begun(tmp_path / "single", tmp_path)


def test_one_file_with_all_weights_counts_before_an_index(tmp_path: Path) -> None:
    """The library takes its weights from it, so it is the one to check."""
    directory = sharded(tmp_path / "base")
    tensors = load_file(directory / "model-0.safetensors")
    tensors |= load_file(directory / "model-1.safetensors")
    int8(tensors)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    with pytest.raises(TrainerFailed, match="I8"):
        begun(directory, tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    directory = sharded(tmp_path / "base")
    tensors = load_file(directory / "model-1.safetensors")
    name, tensor = next(iter(load_file(directory / "model-0.safetensors").items()))
    save_file(tensors | {name: 2 * tensor}, directory / "model-1.safetensors", {"format": "pt"})
    with pytest.raises(TrainerFailed, match=f"{name} is in two of the checkpoint's files"):
        begun(directory, tmp_path)


@pytest.mark.parametrize(
    "name", ["model-1.safetensors", "model.safetensors.index.json", "generation_config.json"]
)
def test_a_named_pipe_in_a_checkpoint_does_not_block(tmp_path: Path, name: str) -> None:
    directory = sharded(tmp_path / "base")
    (directory / name).unlink()
    os.mkfifo(directory / name)
    with pytest.raises(TrainerFailed, match=f"{name} cannot be read .it is a named pipe"):
        begun(directory, tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "model.safetensors.index.json",
            '{"weight_map": {"a": "model-0.safetensors"}}',
            "metadata",
        ),
        ("model.safetensors.index.json", "[" * 100_000, "not a list of files"),
        ("generation_config.json", "[]", "generation_config.json is not a table"),
        ("generation_config.json", "[" * 100_000, "generation_config.json is not a table"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: str, words: str) -> None:
    directory = sharded(tmp_path / "base")
    (directory / name).write_text(content)
    with pytest.raises(TrainerFailed, match=words):
        begun(directory, tmp_path)


@pytest.mark.parametrize("kind", [torch.int64, torch.bool, torch.float8_e5m2])
def test_types_that_the_library_cannot_load_are_named(tmp_path: Path, kind: torch.dtype) -> None:
    def convert(tensors: Tensors) -> None:
        for name in tensors:
            tensors[name] = tensors[name].to(kind)

    directory = edited(tmp_path / "base", convert)
    with pytest.raises(TrainerFailed, match="the checkpoint's numbers are of the type"):
        begun(directory, tmp_path)


# No tensor is dropped silently, and every swarm that starts can be joined.


def float8(tensors: Tensors) -> None:
    tensors[GATE] = tensors[GATE].to(torch.float8_e4m3fn)
    tensors[GATE + "_scale_inv"] = torch.ones(1, 1)


def scales_alone(tensors: Tensors) -> None:
    tensors[GATE + "_scale_inv"] = torch.ones(1, 1)


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
        (another_layer, ("does not describe", "model.layers.1.", "and 6 more", "config.json")),
        (named(ATTENTION + "q_proj.bias"), ("does not describe", "q_proj.bias", "config.json")),
        (named(ATTENTION + "q_proj.lora_A.weight"), ("lora_A", "merge the adapter")),
        (named("v_head.summary.weight"), ("v_head", "head of another task")),
    ],
)
def test_what_has_no_place_is_named(
    tmp_path: Path, edit: Callable[[Tensors], object], words: tuple[str, ...]
) -> None:
    directory = edited(tmp_path / "base", edit)
    with refused("bad_model") as told:
        initialise(TINY_LLAMA, 0, directory, BlobStore(tmp_path / "blobs"), CPU)
    assert all(word in told[0] for word in words), told


def test_tables_that_follow_from_the_configuration_are_no_loss(tmp_path: Path) -> None:
    old = edited(tmp_path / "llama", named(ATTENTION + "rotary_emb.inv_freq"))
    initialise(TINY_LLAMA, 0, old, BlobStore(tmp_path / "blobs"), CPU)

    def masks(tensors: Tensors) -> None:
        tensors["transformer.h.0.attn.bias"] = torch.ones(1, 1, 64, 64, dtype=torch.uint8)
        tensors["transformer.h.0.attn.masked_bias"] = torch.tensor(-1e4)

    old = edited(tmp_path / "gpt2", masks, TINY_GPT2)
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
    with refused("bad_model", r"lm_head.*tie_word_embeddings.*set it to false"):
        initialise(TINY_LLAMA, 0, edited(tmp_path / "base", head), store, CPU)
    # The remedy in the message works.
    made = initialise(TINY_LLAMA | {"tie_word_embeddings": False}, 0, tmp_path / "base", store, CPU)
    assert "lm_head.weight" in {spec.name for spec in made.table}

    def same(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    made = initialise(TINY_LLAMA, 0, edited(tmp_path / "same", same), store, CPU)
    assert "lm_head.weight" not in {spec.name for spec in made.table}


@pytest.mark.parametrize("index", ['{"weight_map": {"a": "../x"}}', "[", "{}", '{"weight_map": 3}'])
def test_an_index_that_cannot_be_meant(tmp_path: Path, index: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY_LLAMA))
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with refused("bad_model", "not a list of files"):
        initialise(TINY_LLAMA, 0, tmp_path, BlobStore(tmp_path / "blobs"), CPU)
