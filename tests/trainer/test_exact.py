"""The shared step gives the same bits whatever the order, the threads or the float type."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from distro_node.node.trainer import exact
from distro_node.node.trainer.blocks import float_basis, inverse_transform
from distro_node.node.trainer.errors import TrainerFailed
from distro_node.node.trainer.exact import apply_step, check_exactness, inverse_signs
from distro_node.protocol.basis import integer_basis
from distro_node.protocol.manifest import ParameterSpec
from distro_node.protocol.update import DecodedUpdate, UpdateLayout, update_layout

SHAPES = [(128, 64), (43, 67), (100, 30), (96,), (7,), (), (2, 3, 40), (1, 1), (5, 64)]
RATE = float(np.float32(4e-3))


@pytest.fixture(autouse=True)
def _restore_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def layout_of(shapes: list[tuple[int, ...]], top_k: int = 8) -> UpdateLayout:
    specs = [ParameterSpec(name=f"p{i}", shape=shape) for i, shape in enumerate(shapes)]
    return update_layout(specs, 64, top_k)


def random_updates(layout: UpdateLayout, members: int, seed: int = 0) -> list[DecodedUpdate]:
    generator = np.random.default_rng(seed)
    updates = []
    for _ in range(members):
        positions, signs = [], []
        for tensor in layout.tensors:
            # Members mostly agree on where the signal is: sums then get large, as in training.
            weights = generator.random((tensor.blocks, tensor.elements)) ** 3
            weights[:, : 2 * tensor.top_k] += 0.7
            chosen = np.argsort(-weights, axis=1)[:, : tensor.top_k]
            positions.append(np.sort(chosen, axis=1).astype(np.int32))
            drawn = generator.random((tensor.blocks, tensor.top_k)) < 0.7
            signs.append(np.where(drawn, 1, -1).astype(np.int8))
        updates.append(DecodedUpdate(positions, signs))
    return updates


def random_parameters(shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator) * 0.02 for shape in shapes]


def stepped(
    updates: list[DecodedUpdate], layout: UpdateLayout, rate: float = RATE, decay: float = 0.1
) -> list[np.ndarray]:
    parameters = random_parameters(SHAPES)
    apply_step(parameters, layout, updates, rate, decay)
    return [parameter.numpy() for parameter in parameters]


def assert_equal_bits(left: list[np.ndarray], right: list[np.ndarray]) -> None:
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(
            np.atleast_1d(a).view(np.uint32), np.atleast_1d(b).view(np.uint32)
        )


def reference_step(updates: list[DecodedUpdate], layout: UpdateLayout) -> list[np.ndarray]:
    """The step in whole numbers, written down a second time."""
    results = []
    for index, tensor in enumerate(layout.tensors):
        a, b = tensor.block_rows, tensor.block_columns
        votes = np.zeros((tensor.blocks, tensor.elements), dtype=np.int64)
        for update in updates:
            for block in range(tensor.blocks):
                votes[block, update.positions[index][block]] += update.signs[index][block]
        left, right = integer_basis(a).astype(np.int64), integer_basis(b).astype(np.int64)
        signs = np.sign(left.T @ votes.reshape(-1, a, b) @ right).astype(np.float32)
        across = tensor.columns // b
        whole = np.block(
            [
                [signs[row * across + column] for column in range(across)]
                for row in range(tensor.rows // a)
            ]
        )
        old = random_parameters(SHAPES)[index].numpy()
        factor = np.float32(1 - np.longdouble(RATE) * np.longdouble(0.1))
        results.append(old * factor - np.float32(RATE) * whole.reshape(old.shape))
    return results


def test_agrees_with_whole_number_arithmetic() -> None:
    layout = layout_of(SHAPES)
    updates = random_updates(layout, 5)
    assert_equal_bits(stepped(updates, layout), reference_step(updates, layout))


def test_same_bits_for_any_order_threads_float_type_and_stripes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layout = layout_of(SHAPES)
    updates = random_updates(layout, 9)
    torch.set_num_threads(1)
    expected = stepped(updates, layout)
    assert_equal_bits(stepped(updates[::-1], layout), expected)
    torch.set_num_threads(2)
    assert_equal_bits(stepped(updates, layout), expected)
    with monkeypatch.context() as patch:
        patch.setattr(exact, "exact_in_float32", lambda *_: False)
        assert_equal_bits(stepped(updates, layout), expected)
    with monkeypatch.context() as patch:
        patch.setattr("distro_node.node.trainer.blocks._STRIPE_ELEMENTS", 2000)
        assert_equal_bits(stepped(updates, layout), expected)


@pytest.mark.parametrize("members", [517, 518])
def test_beyond_the_bound_of_float32_it_takes_float64(
    members: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All members send everything: the largest sums there can be. 518 · 4 · 90² exceeds 2^24."""
    layout = update_layout([ParameterSpec(name="p", shape=(2, 2))], 2, 4)
    everywhere = np.arange(4, dtype=np.int32)[None]
    update = DecodedUpdate([everywhere], [np.ones((1, 4), dtype=np.int8)])
    taken = []

    def recorded(votes: torch.Tensor, *, in_float32: bool) -> torch.Tensor:
        taken.append(in_float32)
        return inverse_signs(votes, in_float32=in_float32)

    monkeypatch.setattr(exact, "inverse_signs", recorded)
    parameter = torch.zeros(2, 2)
    apply_step([parameter], layout, [update] * members, 1.0, 0.0)
    assert taken == [members == 517]
    votes = np.full((2, 2), members)
    basis = integer_basis(2).astype(np.int64)
    np.testing.assert_array_equal(parameter.numpy(), -np.sign(basis.T @ votes @ basis))


def test_float32_does_lose_whole_numbers_beyond_the_bound() -> None:
    """So the switch to float64 is no decoration."""
    generator = np.random.default_rng(3)
    votes = generator.integers(-4096, 4097, (1, 64, 64))
    votes_t = torch.from_numpy(votes.astype(np.float32))
    basis = torch.from_numpy(integer_basis(64).astype(np.float32))
    whole = integer_basis(64).astype(np.int64)
    exact_sums = whole.T @ votes @ whole
    in_float32 = inverse_transform(votes_t, basis, basis).numpy().astype(np.int64)
    assert (in_float32 != exact_sums).any()
    np.testing.assert_array_equal(
        inverse_signs(votes_t, in_float32=False).numpy(), np.sign(exact_sums)
    )


def test_the_unrounded_transform_would_tear_replicas_apart() -> None:
    """Two orders of summation, one float basis: some signs differ. The integer basis has none.

    Votes for a frequency pair and against its mirror image cancel on the diagonal; what a float
    transform finds there is rounding.
    """
    generator = np.random.default_rng(0)
    differing = {"float": 0, "whole": 0}
    for _ in range(20):
        votes = torch.zeros(64, 64)
        for row, column in generator.integers(0, 64, (4, 2)):
            votes[row, column] += 1
            votes[column, row] -= 1
        for name, basis in (
            ("float", float_basis(64, torch.device("cpu"))),
            ("whole", torch.from_numpy(integer_basis(64).astype(np.float32))),
        ):
            columns_first = torch.sign(basis.T @ (votes @ basis))
            rows_first = torch.sign((basis.T @ votes) @ basis)
            differing[name] += int((columns_first != rows_first).sum())
    assert differing["whole"] == 0
    assert differing["float"] > 100


def test_no_update_changes_nothing() -> None:
    layout = layout_of(SHAPES)
    assert_equal_bits(stepped([], layout), [p.numpy() for p in random_parameters(SHAPES)])


def test_opposite_votes_cancel_but_weight_decay_stays() -> None:
    layout = layout_of([(64, 64)])
    (update,) = random_updates(layout, 1)
    opposite = DecodedUpdate(update.positions, [-sign for sign in update.signs])
    parameter = torch.ones(64, 64)
    apply_step([parameter], layout, [update, opposite], 0.5, 0.25)
    assert (parameter == 0.875).all()


def test_an_inexact_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_exactness(torch.device("cpu"))

    def reduced(votes: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """What TF32 does: ten bits of every factor."""
        first = (votes @ b).to(torch.bfloat16).to(votes.dtype)
        return a.T @ first

    monkeypatch.setattr(exact, "inverse_transform", reduced)
    with pytest.raises(TrainerFailed, match="exactly") as caught:
        check_exactness(torch.device("cpu"))
    assert caught.value.kind == "no_device"
