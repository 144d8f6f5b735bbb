"""The memory that training takes, computed and measured, and the choices based on it."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from distro_node.node.storage.blob_store import BlobStore
from distro_node.node.trainer.training_session import TrainingSession
from distro_node.node.training.architectures import ARCHITECTURES
from distro_node.node.training.memory_model import LAYER_ACTIVATIONS, Workload, needs
from distro_node.node.training.memory_options import MemoryOptions, StateOptions
from distro_node.node.training.memory_plan import (
    LARGEST_MICRO_BATCH,
    FreeMemory,
    choices,
    choose,
    plan_line,
)
from distro_node.protocol.wire.manifest import OptimizerSpec, ParameterSpec
from trainer.support import CPU, make_manifest, make_session, opened, refused

PLENTY = FreeMemory(device=1 << 50, host=1 << 50)
WORK = Workload(
    config={
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 704,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 8192,
    },
    parameters=(
        ParameterSpec(name="embedding", shape=(8192, 256)),
        ParameterSpec(name="body", shape=(25_600, 256)),
        ParameterSpec(name="norm", shape=(256,)),
    ),
    sequence_length=512,
)


@pytest.fixture
def benchmark(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    return importlib.import_module("memory")


def test_measured_peaks_are_those_of_the_arithmetic_and_the_preset_fits_12_gb(
    benchmark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(LAYER_ACTIVATIONS) == set(ARCHITECTURES)
    rows = benchmark.measure("1M", 128, 1, 4, CPU)
    assert len(rows) == 6
    for row in rows:
        assert abs(row["difference"]) < 0.05, row
    fitting = [row for row in benchmark.preset_on_a_card() if row["fits"]]
    assert fitting
    assert all(row["bytes_a_parameter"] <= 8.005 for row in fitting)
    capsys.readouterr()


def test_what_costs_least_of_what_fits_is_chosen() -> None:
    # So long that activations exceed everything else.
    work = dataclasses.replace(WORK, sequence_length=1 << 15)
    every = list(choices(work, "cuda", PLENTY, micro_batch=1))
    assert all(choice.fits for choice in every)
    assert every[0].options == MemoryOptions()
    seen = []
    for size in sorted({int(1.085 * choice.needs.device) for choice in every}, reverse=True):
        room = FreeMemory(device=size, host=1 << 40)
        chosen = choose(work, "cuda", room, micro_batch=1)
        assert chosen.needs.device <= size
        before = every[: [each.options for each in every].index(chosen.options)]
        assert all(1.075 * each.needs.device > size for each in before)
        seen.append(chosen.options)
    assert seen[0] == MemoryOptions()
    assert seen[-1].checkpointing
    with refused("model_too_large", "at least, with"):
        choose(WORK, "cuda", FreeMemory(device=1 << 20, host=1 << 40))


def test_what_is_kept_is_reported() -> None:
    muon = OptimizerSpec(preconditioner="muon", smoothing=0.5)
    for optimizer, words in (
        (OptimizerSpec(preconditioner="none"), "momentum in float32"),
        (OptimizerSpec(), "momentum and second moment in float32"),
        (muon, "momentum and smoothed gradient in float32"),
        (OptimizerSpec(smoothing=0.5), "momentum, second moment and smoothed gradient in float32"),
    ):
        work = dataclasses.replace(WORK, optimizer=optimizer)
        assert choose(work, "cuda", PLENTY, micro_batch=1).summary == words


def test_main_memory_is_only_taken_where_there_is_some() -> None:
    aside = MemoryOptions(state=StateOptions(precision="bfloat16", place="host"))
    wanted = needs(WORK, "cuda", aside)
    room = FreeMemory(device=2 * wanted.device, host=wanted.host - 1)
    assert not next(choices(WORK, "cuda", room, 1, aside)).fits
    room = dataclasses.replace(room, host=wanted.host)
    assert next(choices(WORK, "cuda", room, 1, aside)).fits
    # On a CPU there is no other memory besides main memory.
    assert all(choice.options.state.place == "device" for choice in choices(WORK, "cpu", room, 1))


def test_as_many_sequences_at_once_as_fit_into_half_of_what_is_left() -> None:
    work = dataclasses.replace(WORK, sequence_length=128)
    one = needs(work, "cpu", MemoryOptions()).device
    more = needs(work, "cpu", MemoryOptions(), 2).device - one
    room = FreeMemory(device=int(1.075 * one) + 6 * more + 10)
    chosen = choose(work, "cpu", room)
    assert chosen.micro_batch == 4
    assert "4 sequences at once" in plan_line(chosen, room)
    assert choose(work, "cpu", FreeMemory(device=1 << 50), micro_batch=3).micro_batch == 3


def test_on_a_processor_no_more_at_once_than_its_caches_hold() -> None:
    for length, at_once in ((16, 32), (64, 16), (256, 4), (1000, 1), (4096, 1)):
        work = dataclasses.replace(WORK, sequence_length=length)
        assert choose(work, "cpu", PLENTY).micro_batch == at_once
        assert choose(work, "cuda", PLENTY).micro_batch == LARGEST_MICRO_BATCH


def test_a_session_takes_what_is_given(tmp_path: Path) -> None:
    made = make_manifest(tmp_path)
    work = Workload.of(made[0])
    least = min(choice.needs.device for choice in choices(work, "cpu", FreeMemory(device=0), 1))
    session = opened(made, tmp_path, memory=int(1.085 * least))
    assert session.micro_batch == 1
    assert "1 sequence at once" in session.memory
    assert session.train(1, range(2)).tokens == 64
    with refused("model_too_large"):
        TrainingSession(made[0], BlobStore(tmp_path), CPU, memory=least // 2)


def test_where_one_sequence_is_too_much_activations_are_computed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = make_session(tmp_path, micro_batch=1)
    loss = session.task.loss

    def exhausted(*arguments: Any) -> Any:
        if not session.computation.checkpointing:
            raise torch.OutOfMemoryError("out of memory")
        return loss(*arguments)

    monkeypatch.setattr(session.task, "loss", exhausted)
    assert session.train(1, range(2)).tokens == 64
    assert session.computation.checkpointing


def test_several_devices_divide_what_they_do_not_copy() -> None:
    """A table whose rows are cut evenly, so that each of two devices has half of it."""
    table = (ParameterSpec(name="body", shape=(8192, 256)),)
    alone = dataclasses.replace(WORK, parameters=table)
    copies = dataclasses.replace(alone, ranks=2)
    shards = dataclasses.replace(copies, shards=True)

    def sizes(work: Workload, device: str) -> list[int]:
        found = needs(work, device, MemoryOptions())
        parts = {part.name: part.device for part in (*found.permanent, *found.phases[0])}
        names = ("parameters", "gradient", "momentum", "second moment")
        return [parts[name] for name in names]

    whole = 4 * 8192 * 256
    assert sizes(alone, "cuda") == [whole] * 4
    assert sizes(copies, "cuda") == [whole, whole, whole // 2, whole // 2]
    assert sizes(shards, "cuda") == [whole // 2] * 4
    # CPU ranks share one memory.
    assert sizes(copies, "cpu") == [2 * whole, 2 * whole, whole, whole]
    assert sizes(shards, "cpu") == [whole] * 4
    # In shards activations are always computed twice.
    assert all(choice.options.checkpointing for choice in choices(shards, "cuda", PLENTY))
    aside = MemoryOptions(state=StateOptions(place="host"))
    apart = [needs(work, "cuda", aside).host for work in (alone, copies)]
    each = needs(alone, "cuda", aside)
    decoding = each.phases[2][1].host
    decoding += sum(
        part.host for part in each.permanent if part.name == "updates decoded on arrival"
    )
    # So do GPUs the main memory, in which each decodes every update.
    assert apart[1] - apart[0] == decoding


def test_processors_share_the_memory_for_sequences() -> None:
    work = dataclasses.replace(WORK, sequence_length=64)
    one = needs(dataclasses.replace(work, ranks=2), "cpu", MemoryOptions()).device
    more = (
        needs(work, "cpu", MemoryOptions(), 2).device - needs(work, "cpu", MemoryOptions()).device
    )
    room = FreeMemory(device=int(1.075 * one) + 8 * more)
    sizes = [
        choose(dataclasses.replace(work, ranks=ranks), "cpu", room).micro_batch for ranks in (1, 2)
    ]
    assert sizes[0] > 2 * sizes[1] >= 2
