"""Models from strangers' configurations, initial parameters, and mismatches."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer import device as device_module
from distro_node.node.trainer.device import choose_device, free_bytes
from distro_node.node.trainer.models.export import export
from distro_node.node.trainer.models.initial_parameters import initialise
from distro_node.node.trainer.models.model import build_model, ordered_parameters
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.training import main_memory
from distro_node.node.training.errors import TrainerFailed
from distro_node.protocol.wire.manifest import ParameterSpec
from trainer.support import CPU, TINY_LLAMA, make_manifest, make_session, refused
from transformers import AutoModelForCausalLM, AutoTokenizer


def table_of(config: dict[str, Any], root: Path) -> tuple[ParameterSpec, ...]:
    return initialise(config, 0, None, BlobStore(root), CPU).table


def assert_fails(config: dict[str, Any], table: Any, words: str = "") -> None:
    with refused("bad_model", words):
        build_model(config, table, CPU)


def test_tied_weights_appear_once_and_a_seed_chooses_the_parameters(tmp_path: Path) -> None:
    tied, untied = (
        {spec.name for spec in table_of(TINY_LLAMA | {"tie_word_embeddings": each}, tmp_path)}
        for each in (True, False)
    )
    assert untied - tied == {"lm_head.weight"}
    store = BlobStore(tmp_path)
    first, again, other = (initialise(TINY_LLAMA, s, None, store, CPU) for s in (1, 1, 2))
    assert first == again
    assert first.blobs.chunks != other.blobs.chunks


def test_the_table_is_matched_by_name_whatever_its_order(tmp_path: Path) -> None:
    table = table_of(TINY_LLAMA, tmp_path)[::-1]
    model = build_model(TINY_LLAMA, table, CPU)
    shapes = [tuple(parameter.shape) for parameter in ordered_parameters(model, table)]
    assert shapes == [spec.shape for spec in table]


def test_a_table_that_does_not_match(tmp_path: Path) -> None:
    table = list(table_of(TINY_LLAMA, tmp_path))
    wrong_shape = [dataclasses.replace(table[0], shape=(256, 31)), *table[1:]]
    assert_fails(TINY_LLAMA, wrong_shape, r"\(256, 32\)")
    assert_fails(TINY_LLAMA, table[:-1], "every parameter once")
    assert_fails(TINY_LLAMA, [*table, table[0]], "every parameter once")
    assert_fails(TINY_LLAMA, [*table, ParameterSpec(name="extra", shape=(2,))], "extra")


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": None},
        {"model_type": "vit"},
        {"hidden_size": "many"},
        {"num_attention_heads": 0},
        {"num_hidden_layers": 10**9},
        {"quantization_config": {"quant_method": "gptq"}},
    ],
)
def test_a_configuration_that_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    table = table_of(TINY_LLAMA, tmp_path)
    assert_fails(TINY_LLAMA | changes, table)


def test_how_others_ran_it_is_ignored(tmp_path: Path) -> None:
    foreign = TINY_LLAMA | {
        "torch_dtype": "bfloat16",
        "dtype": "float16",
        "architectures": ["LlamaForCausalLM"],
        "transformers_version": "4.0.0",
        "_name_or_path": "somebody/something",
        "attn_implementation": "somebody/kernel",
        "_attn_implementation": "flash_attention_2",
    }
    model = build_model(foreign, table_of(TINY_LLAMA, tmp_path), CPU)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize(("key", "value"), [("vocabulary", 257), ("sequence_length", 65)])
def test_data_that_the_model_cannot_take(tmp_path: Path, key: str, value: int) -> None:
    manifest, _ = make_manifest(tmp_path)
    data = dataclasses.replace(manifest.data, **{key: value})
    with refused("bad_model", f"{value} tokens"):
        TrainingSession(dataclasses.replace(manifest, data=data), BlobStore(tmp_path), CPU)


def test_export_and_checkpoint(tmp_path: Path) -> None:
    """An export loads with transformers, and can be the start of a swarm."""
    session = make_session(tmp_path / "blobs")
    store = BlobStore(tmp_path / "blobs")
    session.apply(1, [session.train(1, [0, 1]).body], 2.0**-8, True)
    directory = tmp_path / "out"
    export(session, store, directory)
    model = AutoModelForCausalLM.from_pretrained(directory)
    for a, b in zip(
        ordered_parameters(model, session.manifest.parameters), session.parameters, strict=True
    ):
        assert torch.equal(a, b)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokens = tokenizer("a swarm, Ünïcode")["input_ids"]
    assert len(tokens) == len("a swarm, Ünïcode".encode())
    assert tokenizer.decode(tokens) == "a swarm, Ünïcode"

    made = initialise(TINY_LLAMA, 0, directory, store, CPU)
    assert made.blobs == session.snapshot()
    assert made.table == session.manifest.parameters


def test_a_checkpoint_that_cannot_be_read(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs")
    session = make_session(tmp_path / "blobs")
    export(session, store, tmp_path / "out")
    larger = TINY_LLAMA | {"num_hidden_layers": 2}
    wider = TINY_LLAMA | {"hidden_size": 64}
    for config, directory, says in [
        (TINY_LLAMA, tmp_path / "nowhere", "cannot be read"),
        (larger, tmp_path / "out", "lacks parameters"),
        (wider, tmp_path / "out", r"has the shape \(\d+.*its configuration requires \(\d+"),
    ]:
        with refused("bad_model", says):
            initialise(config, 0, directory, store, CPU)


def test_subnormal_and_infinite_parameters(tmp_path: Path) -> None:
    """Devices treat subnormal numbers differently, so a swarm starts without any."""
    store = BlobStore(tmp_path / "blobs")
    session = make_session(tmp_path / "blobs")
    with torch.no_grad():
        session.parameters[0][0, :3] = torch.tensor([1e-39, -1e-45, 1.2e-38])
    export(session, store, tmp_path / "out")
    made = initialise(TINY_LLAMA, 0, tmp_path / "out", store, CPU)
    session.load(made.blobs.chunks)
    assert session.parameters[0][0, :2].tolist() == [0.0, 0.0]
    assert session.parameters[0][0, 2] > 0
    with torch.no_grad():
        session.parameters[0][0, 0] = float("inf")
    export(session, store, tmp_path / "out")
    with pytest.raises(TrainerFailed, match="finite"):
        initialise(TINY_LLAMA, 0, tmp_path / "out", store, CPU)


def test_auto_finds_one_and_an_absent_one_is_named() -> None:
    assert choose_device("auto").type in {"cuda", "mps", "cpu"}
    for name in ("cuda:63", "nonsense", "xla"):
        with refused("no_device", name):
            choose_device(name)


def test_a_model_too_large_reports_needed_and_available_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, _ = make_manifest(tmp_path)
    monkeypatch.setattr(device_module, "free_bytes", lambda _: 100_000)
    with refused("model_too_large", "100000") as told:
        TrainingSession(manifest, BlobStore(tmp_path), CPU)
    assert int(told[0].split(" takes ")[1].split()[0]) > 10 * manifest.elements


def test_a_container_s_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main_memory, "_CGROUP", tmp_path)
    machine = free_bytes(CPU)
    assert machine > 10_000_000
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    assert free_bytes(CPU) > 10_000_000
    (tmp_path / "memory.max").write_text("3000000\n")
    assert free_bytes(CPU) == 2_000_000
