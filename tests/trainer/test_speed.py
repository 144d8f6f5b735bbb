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
    assert sequence_flops(replace(manifest, model={"model_type": "nothing known"})) is None
    assert (matmul_flops(CPU) or 0) > 1e7
    # Frozen weights have no gradients: of three products with one of them, one is left out.
    adapted, _ = make_manifest(tmp_path, lora=Lora(rank=2, alpha=4.0, targets=()))
    some = sequence_flops(adapted)
    assert some is not None
    assert 4 * WEIGHTS * length < some < by_hand


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

    def full(factor: torch.Tensor) -> float:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(speed, "_product_seconds", full)
    assert matmul_flops(CPU) is None
