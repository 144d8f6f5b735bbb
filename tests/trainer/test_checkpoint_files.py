"""A checkpoint's files: what is read is exact, and what is damaged or odd is named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.models.initial_parameters import initialise
from distro_node.node.training.errors import TrainerFailed
from safetensors.torch import load_file, save_file
from trainer.support import CPU, TINY_LLAMA, write_checkpoint

Tensors = dict[str, torch.Tensor]
GATE = "model.layers.0.mlp.gate_proj.weight"


def edited(root: Path, edit: Callable[[Tensors], object]) -> Path:
    """Return a checkpoint with modified tensors."""
    write_checkpoint(root, TINY_LLAMA)
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
