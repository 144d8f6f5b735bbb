"""The cost of a sequence, compared with a count by hand, and the speed of a device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from distro_node.node.trainer import speed
from distro_node.node.trainer.models.initial_parameters import Lora
from distro_node.node.trainer.speed import matmul_flops, sequence_flops
from trainer.support import CPU, TINY_LLAMA, make_manifest

# Private here: `_product_seconds`: a device that is full.
# Weights in matrix products of the tiny Llama: attention's four, the layer's three, the head's.
HIDDEN = TINY_LLAMA["hidden_size"]
WEIGHTS = 4 * HIDDEN**2 + 3 * HIDDEN * TINY_LLAMA["intermediate_size"] + HIDDEN * 256


def test_operations_are_those_counted_by_hand(tmp_path: Path) -> None:
    """Two per weight and token forward, four backward; attention has two products of its own."""
    manifest, _ = make_manifest(tmp_path)
    length = manifest.data.sequence_length
    by_hand = 6 * WEIGHTS * length + 12 * HIDDEN * length**2
    assert sequence_flops(manifest) == by_hand


def test_frozen_weights_have_no_gradients(tmp_path: Path) -> None:
    whole, _ = make_manifest(tmp_path)
    adapted, _ = make_manifest(tmp_path, lora=Lora(rank=2, alpha=4.0, targets=()))
    # Of three products with a weight, one is left out; attention's own are all done.
    least = 4 * WEIGHTS * whole.data.sequence_length
    some, all_ = sequence_flops(adapted), sequence_flops(whole)
    assert some is not None
    assert all_ is not None
    assert least < some < all_


def test_what_cannot_be_counted_is_not_known(tmp_path: Path) -> None:
    manifest, _ = make_manifest(tmp_path)
    assert sequence_flops(replace(manifest, model={"model_type": "nothing known"})) is None


def test_a_device_has_a_speed_or_reports_none(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = matmul_flops(CPU)
    assert reached is not None
    assert reached > 1e7

    def full(factor: torch.Tensor) -> float:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(speed, "_product_seconds", full)
    assert matmul_flops(CPU) is None


@pytest.mark.parametrize("rate", [1e8, 1.5e9, 1e12])
def test_measuring_takes_a_moment_on_a_device_of_any_speed(
    rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that computes on the processor took six minutes for what a GPU does in one second."""
    taken = []

    def product(factor: torch.Tensor) -> float:
        taken.append(2 * len(factor) ** 3 / rate)
        return taken[-1]

    monkeypatch.setattr(speed, "_product_seconds", product)
    monkeypatch.setattr(speed, "_SIDES", {"cpu": 1536})
    assert matmul_flops(CPU) == pytest.approx(rate)
    assert sum(taken) < 2.0
    # And as large a product as there is time for.
    assert rate < 1e9 or max(taken) > 0.005


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_is_faster_than_a_processor() -> None:
    on_gpu, here = matmul_flops(torch.device("cuda")), matmul_flops(CPU)
    assert on_gpu is not None
    assert here is not None
    assert on_gpu > here
