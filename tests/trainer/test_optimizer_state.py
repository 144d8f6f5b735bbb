"""Momentum in fewer bits: right on average, kept on disk, and invisible to other members."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from distro_node.node.trainer.memory.optimizer_state import Noise, StateTensor, new_state
from distro_node.node.trainer.optimizer.momentum import load_momentum, save_momentum
from distro_node.node.trainer.optimizer.optimizer import LocalOptimizer
from distro_node.node.training.memory_options import (
    MemoryOptions,
    Precision,
    StateOptions,
    stored_bytes,
)
from distro_node.protocol.codec.update import update_layout
from distro_node.protocol.wire.manifest import OptimizerSpec, ParameterSpec
from trainer.support import CPU, make_manifest, opened

PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "int8")
SHAPES = [(64, 128), (30, 20), (48,), ()]
TABLE = [ParameterSpec(name=f"p{i}", shape=shape) for i, shape in enumerate(SHAPES)]
LAYOUT = update_layout(TABLE, 64, 8)
SPEC = OptimizerSpec()
WAYS = [
    MemoryOptions(state=StateOptions(precision=precision), checkpointing=checkpointing)
    for precision in PRECISIONS
    for checkpointing in (False, True)
]


def state(precision: Precision, *, signed: bool = True, columns: int = 300) -> StateTensor:
    options = StateOptions(precision=precision)
    return new_state((8, columns), 8, CPU, options, Noise(CPU), signed=signed)


def optimizer(precision: Precision) -> LocalOptimizer:
    parameters = [torch.zeros(shape) for shape in SHAPES]
    return LocalOptimizer(LAYOUT, parameters, SPEC, StateOptions(precision=precision))


def gradients(seed: int) -> list[torch.Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize(("precision", "digits"), [("bfloat16", 4e-3), ("int8", 1.6e-2)])
def test_what_is_rounded_is_right_on_average(
    precision: Precision, digits: float, signed: bool
) -> None:
    # Large and small numbers beside each other, and a shorter last group.
    values = torch.randn(8, 300, generator=torch.Generator().manual_seed(1))
    values[:, ::7] *= 1e-3
    values = values if signed else values.square()
    kept, total, times = state(precision, signed=signed), torch.zeros(8, 300), 400
    everything = slice(0, 8)
    for _ in range(times):
        kept.write(everything, values.clone())
        found = kept.read_all()
        assert (found - values).norm() < digits * values.norm()
        total += found
    assert (total / times - values).norm() < 2 * digits / times**0.5 * values.norm()
    for _ in range(300):
        kept.write(everything, kept.read(everything).mul_(0.95))
    assert kept.read_all().abs().max() < 1e-5, "a momentum without gradients does not fade"
    # It also has the small ones, whose last digits rounding to nearest would always lose.
    small = (total / times)[:, ::7], values[:, ::7]
    assert (small[0] - small[1]).norm() < 0.1 * small[1].norm()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("columns", [1, 63, 256, 300])
def test_takes_as_many_bytes_as_computed(precision: Precision, columns: int) -> None:
    parts = state(precision, columns=columns).parts().values()
    taken = sum(part.numel() * part.element_size() for part in parts)
    assert taken == stored_bytes(8, columns, precision)


def test_zeros_and_numbers_that_are_none_harm_nobody_else() -> None:
    kept = state("int8")
    values = torch.zeros(8, 300)
    values[0] = 1.0
    values[1, 3] = torch.nan
    kept.write(slice(0, 8), values)
    found = kept.read_all()
    assert torch.equal(found[0], values[0])
    assert not found[2:].any()


@pytest.mark.parametrize("written", PRECISIONS)
@pytest.mark.parametrize("read", PRECISIONS)
def test_a_file_is_read_in_any_precision(
    tmp_path: Path, written: Precision, read: Precision
) -> None:
    one, other, path = optimizer(written), optimizer(read), tmp_path / "momentum"
    one.accumulate(gradients(1))
    save_momentum(one, TABLE, path)
    assert load_momentum(other, TABLE, path)
    assert other.steps == 1
    pairs = [*zip(one.momentum, other.momentum, strict=True)]
    pairs += zip(one.second_moment, other.second_moment, strict=True)
    for was, found in pairs:
        if written == read:
            assert torch.equal(found, was)
        else:
            assert (found - was).norm() <= 0.02 * was.norm()


def test_a_file_with_foreign_scales_is_refused(tmp_path: Path) -> None:
    one, path = optimizer("int8"), tmp_path / "momentum"
    one.accumulate(gradients(1))
    one.coefficients[0].parts()[".scales"][0, 0] = torch.inf
    save_momentum(one, TABLE, path)
    other = optimizer("float32")
    assert not load_momentum(other, TABLE, path)
    assert not other.momentum[0].any()


def test_replicas_are_the_same_to_the_last_bit_whatever_each_keeps(tmp_path: Path) -> None:
    """A swarm of six, each of which keeps its state and activations in another way."""
    made = make_manifest(tmp_path)
    members = [opened(made, tmp_path, options=way) for way in WAYS]
    # Activations that are computed twice give the same gradient.
    assert len({member.train(1, range(4)).body for member in members[:2]}) == 1
    for round_ in range(1, 5):
        bodies = [
            m.train(round_, range(number, number + 3)).body for number, m in enumerate(members)
        ]
        # They are not identical because they all did the same.
        assert len(set(bodies)) > 1
        assert len({member.apply(round_, bodies, 2.0**-8, True) for member in members}) == 1
    for tensors in zip(*(member.parameters for member in members), strict=True):
        assert all(torch.equal(tensors[0], each) for each in tensors[1:])
