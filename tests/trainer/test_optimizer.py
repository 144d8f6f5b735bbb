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
from distro_node.protocol.codec.update import DecodedUpdate, encode_update, update_layout
from distro_node.protocol.wire.manifest import OptimizerSpec, ParameterSpec
from trainer.support import dense_momentum

SHAPES = [(64, 128), (30, 20), (48,), ()]
TABLE = [ParameterSpec(name=f"p{i}", shape=shape) for i, shape in enumerate(SHAPES)]
LAYOUT = update_layout(TABLE, 64, 8)
PLAIN = OptimizerSpec(preconditioner="none", momentum=0.9)
RMS = OptimizerSpec(preconditioner="rms", momentum=0.9, second_moment=0.95)
SMOOTHED = dataclasses.replace(RMS, smoothing=0.5)


def new_optimizer(spec: OptimizerSpec = PLAIN) -> LocalOptimizer:
    return LocalOptimizer(LAYOUT, [torch.zeros(shape) for shape in SHAPES], spec)


def gradients(seed: int) -> list[torch.Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def state(optimizer: LocalOptimizer) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in optimizer.momentum]


def close(ours: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare within the rounding of a float32 transform, and of five iterations of the quintic
    before it; elements here are of size 1."""
    torch.testing.assert_close(ours, expected.double(), rtol=0, atol=8e-6)


def assert_close(left: list[torch.Tensor], right: list[torch.Tensor]) -> None:
    for a, b in zip(left, right, strict=True):
        assert torch.equal(a, b)


def test_momentum_gathers_gradients() -> None:
    optimizer = new_optimizer()
    optimizer.accumulate(gradients(1))
    optimizer.accumulate(gradients(2))
    for index, (first, second) in enumerate(zip(gradients(1), gradients(2), strict=True)):
        assert first is not None
        assert second is not None
        close(dense_momentum(optimizer, LAYOUT)[index].view(SHAPES[index]), 0.9 * first + second)
    optimizer.accumulate([None] * len(SHAPES))
    optimizer.decay()
    for index, (first, second) in enumerate(zip(gradients(1), gradients(2), strict=True)):
        assert first is not None
        assert second is not None
        close(
            dense_momentum(optimizer, LAYOUT)[index].view(SHAPES[index]),
            0.81 * (0.9 * first + second),
        )


def test_the_preconditioner_divides_by_the_corrected_root_mean_square() -> None:
    optimizer = new_optimizer(RMS)
    first, second = gradients(1)[0], gradients(2)[0]
    assert first is not None
    assert second is not None
    optimizer.accumulate(gradients(1))
    close(dense_momentum(optimizer, LAYOUT)[0].view(SHAPES[0]), torch.sign(first))
    optimizer.accumulate(gradients(2))
    mean_square = (0.05 * 0.95 * first**2 + 0.05 * second**2) / (1 - 0.95**2)
    expected = 0.9 * torch.sign(first) + second / mean_square.sqrt()
    close(dense_momentum(optimizer, LAYOUT)[0].view(SHAPES[0]), expected)


def orthogonalise(block: torch.Tensor, rounds: int) -> torch.Tensor:
    """Apply Muon's quintic `rounds` times to the singular values, computed explicitly."""
    left, values, right = torch.linalg.svd(block, full_matrices=False)
    values = values / values.norm()
    for _ in range(rounds):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left * values @ right * max(block.shape) ** 0.5


@pytest.mark.parametrize(("preconditioner", "rounds"), [("orthogonal", 3), ("muon", 5)])
def test_singular_values_are_evened_out(
    preconditioner: Literal["orthogonal", "muon"], rounds: int
) -> None:
    """For blocks of matrices; vectors are divided by their root mean square, or left unchanged."""
    optimizer = new_optimizer(dataclasses.replace(RMS, preconditioner=preconditioner))
    assert bool(optimizer.second_moment) == (preconditioner == "orthogonal")
    optimizer.accumulate(gradients(1))
    for index, gradient in enumerate(gradients(1)):
        assert gradient is not None
        # The first gradient, divided by the root of its own square, becomes its signs.
        divided = torch.sign(gradient) if preconditioner == "orthogonal" else gradient
        expected = divided.double()
        tensor = LAYOUT.tensors[index]
        if tensor.sides == 2:
            bands = [
                band.split(tensor.block_columns, dim=1)
                for band in expected.split(tensor.block_rows)
            ]
            expected = torch.cat(
                [torch.cat([orthogonalise(b, rounds) for b in band], 1) for band in bands]
            )
        close(dense_momentum(optimizer, LAYOUT)[index].view(SHAPES[index]), expected)


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
        assert first is not None
        assert second is not None
        smoothed = second + left * first
        torch.testing.assert_close(optimizer.smoothed[index].read_all(), smoothed)
        momentum = dense_momentum(optimizer, LAYOUT)[index].view(SHAPES[index])
        close(momentum, faded * first + smoothed)


def test_what_is_smoothed_is_preconditioned_next() -> None:
    """The second moment is that of the smoothed gradient."""
    optimizer = new_optimizer(SMOOTHED)
    first, second = gradients(1)[0], gradients(2)[0]
    assert first is not None
    assert second is not None
    optimizer.accumulate(gradients(1))
    optimizer.accumulate(gradients(2))
    smoothed = second + 0.5 * first
    mean_square = (0.05 * 0.95 * first**2 + 0.05 * smoothed**2) / (1 - 0.95**2)
    expected = 0.9 * torch.sign(first) + smoothed / mean_square.sqrt()
    close(dense_momentum(optimizer, LAYOUT)[0].view(SHAPES[0]), expected)


def test_who_restarts_has_nothing_smoothed() -> None:
    optimizer = new_optimizer(SMOOTHED)
    optimizer.accumulate(gradients(1))
    optimizer.start_over()
    assert not any(state.read_all().any() for state in optimizer.smoothed)


@pytest.mark.parametrize("preconditioner", ["orthogonal", "muon"])
def test_a_gradient_of_zero_is_no_division_by_zero(
    preconditioner: Literal["orthogonal", "muon"],
) -> None:
    optimizer = new_optimizer(dataclasses.replace(RMS, preconditioner=preconditioner))
    optimizer.accumulate([torch.zeros(shape) for shape in SHAPES])
    assert all((momentum == 0).all() for momentum in optimizer.momentum)


def test_takes_the_strongest_coefficients_and_leaves_the_rest() -> None:
    optimizer = new_optimizer()
    optimizer.accumulate(gradients(3))
    coefficients = optimizer.momentum[0][1].numpy().copy()
    strongest = np.sort(np.argsort(-np.abs(coefficients))[:8])

    taken = optimizer.take(1)
    np.testing.assert_array_equal(taken.positions[0][1], strongest)
    np.testing.assert_allclose(taken.values[0][1], coefficients[strongest], rtol=1e-5)
    np.testing.assert_array_equal(taken.signs[0][1], np.sign(coefficients[strongest]))
    encode_update(LAYOUT, taken.positions, taken.signs)
    coefficients[strongest] = 0
    np.testing.assert_array_equal(optimizer.momentum[0][1].numpy(), coefficients)


def test_a_refund_restores_the_momentum() -> None:
    optimizer = new_optimizer()
    optimizer.accumulate(gradients(4))
    before = state(optimizer)
    optimizer.take(7)
    assert not torch.allclose(optimizer.momentum[0], before[0], atol=1e-3)
    assert optimizer.refund(7)
    assert_close(state(optimizer), before)
    assert not optimizer.refund(7)


def test_what_was_counted_does_not_come_back() -> None:
    optimizer = new_optimizer()
    optimizer.accumulate(gradients(4))
    optimizer.take(7)
    after = state(optimizer)
    assert optimizer.forget(7)
    assert not optimizer.refund(7)
    assert_close(state(optimizer), after)


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
    assert_close(state(optimizer), expected)


@pytest.mark.parametrize(("damping", "heard"), [(0.0, True), (0.5, False)])
def test_no_damping_or_no_updates_leave_the_momentum(damping: float, heard: bool) -> None:
    optimizer = new_optimizer(dataclasses.replace(PLAIN, damping=damping))
    optimizer.accumulate(gradients(8))
    before = state(optimizer)
    taken = optimizer.take(1)
    optimizer.refund(1)
    optimizer.damp([DecodedUpdate(taken.positions, taken.signs)] if heard else [])
    assert_close(state(optimizer), before)


def test_taking_a_round_again_gives_the_first_take_back() -> None:
    optimizer = new_optimizer()
    optimizer.accumulate(gradients(4))
    before = state(optimizer)
    first = optimizer.take(7)
    second = optimizer.take(7)
    for a, b in zip(first.positions, second.positions, strict=True):
        np.testing.assert_array_equal(a, b)
    optimizer.refund(7)
    assert_close(state(optimizer), before)


def test_rounds_that_never_settle_are_refunded_not_lost() -> None:
    optimizer = new_optimizer()
    optimizer.accumulate(gradients(4))
    before = state(optimizer)
    for round_number in range(1, 21):
        optimizer.take(round_number)
    refunded = [round_number for round_number in range(1, 21) if optimizer.refund(round_number)]
    assert refunded == list(range(13, 21))
    assert_close(state(optimizer), before)


def test_an_empty_momentum_sends_what_the_next_round_undoes() -> None:
    optimizer = new_optimizer()
    odd, even = optimizer.take(1), optimizer.take(2)
    assert not any(value.any() for value in odd.values)
    for a, b in zip(odd.positions, even.positions, strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(odd.signs, even.signs, strict=True):
        np.testing.assert_array_equal(a, -b)


def test_deterministic() -> None:
    bodies = []
    for _ in range(2):
        optimizer = new_optimizer(RMS)
        for seed in range(3):
            optimizer.accumulate(gradients(seed))
        taken = optimizer.take(1)
        bodies.append(encode_update(LAYOUT, taken.positions, taken.signs))
    assert bodies[0] == bodies[1]


class TestFile:
    def trained(self) -> LocalOptimizer:
        optimizer = new_optimizer(SMOOTHED)
        optimizer.accumulate(gradients(1))
        optimizer.accumulate(gradients(2))
        return optimizer

    def test_round_trip(self, tmp_path: Path) -> None:
        optimizer, other = self.trained(), new_optimizer(SMOOTHED)
        path = tmp_path / "momentum"
        save_momentum(optimizer, TABLE, path)
        assert load_momentum(other, TABLE, path)
        assert list(tmp_path.iterdir()) == [path]
        optimizer.accumulate(gradients(3))
        other.accumulate(gradients(3))
        for a, b in zip(optimizer.momentum, other.momentum, strict=True):
            assert torch.equal(a, b)

    def test_missing(self, tmp_path: Path) -> None:
        assert not load_momentum(new_optimizer(), TABLE, tmp_path / "nothing")

    def test_of_another_model_or_optimizer(self, tmp_path: Path) -> None:
        path = tmp_path / "momentum"
        save_momentum(self.trained(), TABLE, path)
        for spec in (PLAIN, RMS):
            assert not load_momentum(new_optimizer(spec), TABLE, path)
        shapes = [(64, 64), *SHAPES[1:]]
        table = [dataclasses.replace(spec, shape=s) for spec, s in zip(TABLE, shapes, strict=True)]
        layout = update_layout(table, 64, 8)
        other = LocalOptimizer(layout, [torch.zeros(shape) for shape in shapes], SMOOTHED)
        assert not load_momentum(other, table, path)
        assert (other.momentum[1] == 0).all()

    def test_not_finite(self, tmp_path: Path) -> None:
        path = tmp_path / "momentum"
        broken = self.trained()
        broken.second_moment[2][3] = float("inf")
        save_momentum(broken, TABLE, path)
        target = new_optimizer(SMOOTHED)
        assert not load_momentum(target, TABLE, path)
        assert (target.momentum[0] == 0).all()

    @pytest.mark.parametrize("kept", [0, 7, 100, 2000, -4])
    def test_torn(self, tmp_path: Path, kept: int) -> None:
        path = tmp_path / "momentum"
        save_momentum(self.trained(), TABLE, path)
        path.write_bytes(path.read_bytes()[:kept])
        assert not load_momentum(new_optimizer(SMOOTHED), TABLE, path)

    def test_garbage_and_a_directory(self, tmp_path: Path) -> None:
        path = tmp_path / "momentum"
        path.write_bytes(np.random.default_rng(0).bytes(5000))
        assert not load_momentum(new_optimizer(SMOOTHED), TABLE, path)
        assert not load_momentum(new_optimizer(SMOOTHED), TABLE, tmp_path)
