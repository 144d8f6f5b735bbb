"""Local momentum: the published update, refunds, and its file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from distro_node.node.trainer.optimizer.momentum import load_momentum, save_momentum
from distro_node.node.trainer.optimizer.optimizer import LocalOptimizer
from distro_node.node.trainer.optimizer.orthogonal import MUON, PARTIAL, Iterations
from distro_node.protocol.codec.update import DecodedUpdate, update_layout
from distro_node.protocol.wire.manifest import OptimizerSpec, ParameterSpec
from trainer.support import by_svd, dense_momentum

SHAPES = [(64, 128), (30, 20), (48,), ()]
TABLE = [ParameterSpec(name=f"p{i}", shape=shape) for i, shape in enumerate(SHAPES)]
LAYOUT = update_layout(TABLE, 64, 8)
PLAIN = OptimizerSpec(preconditioner="none", momentum=0.9)
RMS = OptimizerSpec(preconditioner="rms", momentum=0.9, second_moment=0.95)
SMOOTHED = dataclasses.replace(RMS, smoothing=0.5)


def new_optimizer(spec: OptimizerSpec = PLAIN) -> LocalOptimizer:
    return LocalOptimizer(LAYOUT, [torch.zeros(shape) for shape in SHAPES], spec)


def gradients(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def state(optimizer: LocalOptimizer) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in optimizer.momentum]


def close(optimizer: LocalOptimizer, index: int, expected: torch.Tensor) -> None:
    """Compare a tensor's momentum within the rounding of a float32 transform, and of the
    iterations before it; elements here are of size 1."""
    found = dense_momentum(optimizer, LAYOUT)[index].view(SHAPES[index])
    torch.testing.assert_close(found, expected.double(), rtol=0, atol=8e-6)


def assert_equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> None:
    assert all(map(torch.equal, left, right))


@pytest.mark.parametrize("smoothing", [0.0, 0.5])
def test_the_preconditioner_divides_by_the_corrected_root_mean_square(smoothing: float) -> None:
    """Of the smoothed gradient, if it is smoothed."""
    optimizer = new_optimizer(dataclasses.replace(RMS, smoothing=smoothing))
    first, second = gradients(1)[0], gradients(2)[0]
    optimizer.accumulate(gradients(1))
    close(optimizer, 0, torch.sign(first))
    optimizer.accumulate(gradients(2))
    second += smoothing * first
    mean_square = (0.05 * 0.95 * first**2 + 0.05 * second**2) / (1 - 0.95**2)
    close(optimizer, 0, 0.9 * torch.sign(first) + second / mean_square.sqrt())


@pytest.mark.parametrize(
    ("preconditioner", "iterations"), [("orthogonal", PARTIAL), ("muon", MUON)]
)
def test_singular_values_are_evened_out(
    preconditioner: Literal["orthogonal", "muon"], iterations: Iterations
) -> None:
    """For blocks of matrices; vectors are divided by their root mean square, or left unchanged."""
    spec = dataclasses.replace(RMS, preconditioner=preconditioner)
    optimizer = new_optimizer(spec)
    assert bool(optimizer.second_moment) == (preconditioner == "orthogonal")
    optimizer.accumulate(gradients(1))
    for index, gradient in enumerate(gradients(1)):
        # The first gradient, divided by the root of its own square, becomes its signs.
        expected = (torch.sign(gradient) if preconditioner == "orthogonal" else gradient).double()
        tensor = LAYOUT.tensors[index]
        if tensor.sides == 2:
            bands = (
                band.split(tensor.block_columns, dim=1)
                for band in expected.split(tensor.block_rows)
            )
            expected = torch.cat(
                [torch.cat([by_svd(b[None], iterations)[0] for b in band], 1) for band in bands]
            )
        close(optimizer, index, expected)
    # A gradient of zero is no division by zero.
    empty = new_optimizer(spec)
    empty.accumulate([torch.zeros(shape) for shape in SHAPES])
    assert not any(momentum.any() for momentum in empty.momentum)


@pytest.mark.parametrize("missing", ["samples", "gradient", "neither"])
def test_a_smoothed_gradient_holds_what_is_left_of_those_before(missing: str) -> None:
    """And decays as the momentum does in a round without a gradient."""
    optimizer = new_optimizer(dataclasses.replace(PLAIN, smoothing=0.5))
    optimizer.accumulate(gradients(1))
    if missing == "samples":
        optimizer.decay()
    elif missing == "gradient":
        optimizer.accumulate([None] * len(SHAPES))
    optimizer.accumulate(gradients(2))
    faded, left = (0.9, 0.5) if missing == "neither" else (0.81, 0.25)
    for index, (first, second) in enumerate(zip(gradients(1), gradients(2), strict=True)):
        smoothed = second + left * first
        torch.testing.assert_close(optimizer.smoothed[index].read_all(), smoothed)
        close(optimizer, index, faded * first + smoothed)
    optimizer.start_over()
    assert not any(state.read_all().any() for state in optimizer.smoothed)


def test_the_momentum_yields_wherever_somebody_spoke() -> None:
    """Once, however many updates contain the coefficient, and nowhere else."""
    optimizer, others = new_optimizer(dataclasses.replace(PLAIN, damping=0.75)), []
    for seed in (5, 6, 6):
        other = new_optimizer()
        other.accumulate(gradients(seed))
        taken = other.take(1)
        others.append(DecodedUpdate(taken.positions, taken.signs))
    optimizer.accumulate(gradients(7))
    expected = state(optimizer)
    optimizer.damp(others)
    for index, momentum in enumerate(expected):
        sent = np.concatenate([other.positions[index] for other in others], axis=1)
        for row, places in zip(momentum, sent, strict=True):
            row[np.unique(places)] *= 0.25
    assert_equal(state(optimizer), expected)


def test_what_was_taken_comes_back_once_unless_it_was_counted() -> None:
    optimizer = new_optimizer()
    optimizer.accumulate(gradients(4))
    before = state(optimizer)
    first, second = optimizer.take(7), optimizer.take(7)
    assert all(map(np.array_equal, first.positions, second.positions))
    assert not torch.allclose(optimizer.momentum[0], before[0], atol=1e-3)
    assert optimizer.refund(7)
    assert_equal(state(optimizer), before)
    assert not optimizer.refund(7)
    # Rounds that are never settled are refunded, and not lost.
    for number in range(1, 21):
        optimizer.take(number)
    assert [number for number in range(1, 21) if optimizer.refund(number)] == [*range(13, 21)]
    assert_equal(state(optimizer), before)
    optimizer.take(7)
    after = state(optimizer)
    assert optimizer.forget(7)
    assert not optimizer.refund(7)
    assert_equal(state(optimizer), after)


def test_an_empty_momentum_sends_what_the_next_round_undoes() -> None:
    optimizer = new_optimizer()
    odd, even = optimizer.take(1), optimizer.take(2)
    assert not any(value.any() for value in odd.values)
    for a, b in zip(odd.positions, even.positions, strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(odd.signs, even.signs, strict=True):
        np.testing.assert_array_equal(a, -b)


def trained() -> LocalOptimizer:
    optimizer = new_optimizer(SMOOTHED)
    optimizer.accumulate(gradients(1))
    optimizer.accumulate(gradients(2))
    return optimizer


def test_a_file_holds_all_that_there_is(tmp_path: Path) -> None:
    optimizer, other, path = trained(), new_optimizer(SMOOTHED), tmp_path / "momentum"
    assert not load_momentum(other, TABLE, path)
    save_momentum(optimizer, TABLE, path)
    assert load_momentum(other, TABLE, path)
    assert [*tmp_path.iterdir()] == [path]
    for each in (optimizer, other):
        each.accumulate(gradients(3))
    assert_equal(optimizer.momentum, other.momentum)


def test_a_file_of_another_model_or_optimizer_is_refused(tmp_path: Path) -> None:
    path, broken = tmp_path / "momentum", trained()
    save_momentum(trained(), TABLE, path)
    for spec in (PLAIN, RMS):
        assert not load_momentum(new_optimizer(spec), TABLE, path)
    shapes = [(64, 64), *SHAPES[1:]]
    table = [dataclasses.replace(spec, shape=s) for spec, s in zip(TABLE, shapes, strict=True)]
    layout = update_layout(table, 64, 8)
    other = LocalOptimizer(layout, [torch.zeros(shape) for shape in shapes], SMOOTHED)
    assert not load_momentum(other, table, path)
    assert not other.momentum[1].any()
    # Nor one that is not finite.
    broken.second_moment[2][3] = float("inf")
    save_momentum(broken, TABLE, path)
    target = new_optimizer(SMOOTHED)
    assert not load_momentum(target, TABLE, path)
    assert not target.momentum[0].any()


def test_a_file_that_is_torn_or_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "momentum"
    save_momentum(trained(), TABLE, path)
    whole = path.read_bytes()
    torn = [whole[:kept] for kept in (0, 7, 100, 2000, -4)]
    for content in (*torn, np.random.default_rng(0).bytes(5000)):
        path.write_bytes(content)
        assert not load_momentum(new_optimizer(SMOOTHED), TABLE, path)
    assert not load_momentum(new_optimizer(SMOOTHED), TABLE, tmp_path)
