"""The shared step gives the same bits for any order, number of threads, float type or strides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from distro_node.node.trainer.optimizer import blocks, exact_step
from distro_node.node.trainer.optimizer.blocks import float_basis, integer_basis_as_float
from distro_node.node.trainer.optimizer.exact_step import apply_step
from distro_node.protocol.codec.basis import MAX_SIDE, exact_in_float32, integer_basis
from distro_node.protocol.codec.update import DecodedUpdate, UpdateLayout
from distro_node.protocol.wire.manifest import Step
from trainer.exactness import (
    RATE,
    SHAPES,
    Bits,
    assert_equal_bits,
    bits_of,
    layout_of,
    random_parameters,
    random_updates,
    reference_step,
)
from trainer.support import CPU

LAYOUT = layout_of(SHAPES)


@pytest.fixture(autouse=True)
def _restore_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=["sign", "scaled"])
def step(request: pytest.FixtureRequest) -> Step:
    return request.param


def stepped(
    updates: list[DecodedUpdate],
    layout: UpdateLayout = LAYOUT,
    decay: float = 0.1,
    step: Step = "sign",
) -> Bits:
    parameters = random_parameters(SHAPES)
    apply_step(parameters, layout, updates, RATE, decay, step=step)
    return bits_of(parameters)


@pytest.mark.parametrize(
    ("members", "decay", "chunk", "top_k"),
    [(1, 0.0, 64, 8), (32, 0.1, 64, 8), (3, 0.1, 64, 4095), (3, 0.1, 7, 49), (3, 0.1, 1, 1)],
)
def test_agrees_with_whole_number_arithmetic(
    members: int, decay: float, chunk: int, top_k: int, step: Step
) -> None:
    """In any order of the updates."""
    layout = layout_of(SHAPES, top_k, chunk)
    updates = random_updates(layout, members)
    expected = reference_step(random_parameters(SHAPES), layout, updates, RATE, decay, step)
    for order in (updates, updates[::-1]):
        assert_equal_bits(stepped(order, layout, decay=decay, step=step), expected)


def test_same_bits_for_one_thread_and_two(step: Step) -> None:
    """On a matrix so large that torch splits the work; small ones stay on one thread."""
    shapes = [(1024, 512), (300_007,)]
    layout = layout_of(shapes)
    updates = random_updates(layout, 3)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        assert torch.get_num_threads() == threads
        parameters = random_parameters(shapes)
        apply_step(parameters, layout, updates, RATE, 0.1, step=step)
        results.append(bits_of(parameters))
    assert_equal_bits(*results)


@pytest.mark.parametrize(
    ("module", "name", "limit"),
    [
        *((blocks, "CPU_STRIPE", limit) for limit in (1, 2000, 1 << 24)),
        *((exact_step, "CPU_KEPT_SUMS", limit) for limit in (0, 5000, 30_000)),
    ],
)
def test_same_bits_for_any_size_of_stripes_and_whatever_sums_are_kept(
    module: Any, name: str, limit: int, step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates = random_updates(LAYOUT, 4)
    expected = stepped(updates, step=step)
    monkeypatch.setattr(module, name, limit)
    assert_equal_bits(stepped(updates, step=step), expected)


def strided(values: torch.Tensor, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return memory with other numbers around, and a view of it that holds the values."""
    if kind == "transposed":
        memory = values.movedim(0, -1).clone(memory_format=torch.contiguous_format)
        return memory, memory.movedim(-1, 0)
    if kind == "every second":
        memory = torch.full((*values.shape[:-1], 2 * values.shape[-1]), 7.0)
        view = memory[..., ::2]
    elif kind == "inner columns":
        memory = torch.full((*values.shape[:-1], values.shape[-1] + 5), 7.0)
        view = memory[..., 2:-3]
    else:
        memory = torch.full((values.shape[0] + 9, *values.shape[1:]), 7.0)
        view = memory[4:-5]
    view.copy_(values)
    return memory, view


@pytest.mark.parametrize("kind", ["transposed", "every second", "inner columns", "inner rows"])
def test_same_bits_however_parameters_lie_in_memory(kind: str, step: Step) -> None:
    shapes = [shape for shape in SHAPES if shape]
    layout = layout_of(shapes)
    updates = random_updates(layout, 4)
    parameters = random_parameters(shapes)
    made = [strided(parameter, kind) for parameter in parameters]
    views = [view for _, view in made]
    apply_step(views, layout, updates, RATE, 0.1, step=step)
    assert_equal_bits(
        bits_of([view.contiguous() for view in views]),
        reference_step(parameters, layout, updates, RATE, 0.1, step),
    )
    assert any(not view.is_contiguous() for view in views) == (kind != "inner rows")
    for memory, view in made:
        view.fill_(0.0)
        assert ((memory == 7.0) | (memory == 0.0)).all()


@pytest.mark.parametrize(("members", "count"), [(517, 1), (518, 1), (258, 2), (259, 2)])
def test_beyond_the_bound_of_float32_it_takes_float64(members: int, count: int) -> None:
    """All members send everything: the largest possible sums. 518 · 4 · 90² exceeds 2^24."""
    layout = layout_of([(2, 2)], top_k=4, chunk=2)
    everywhere = np.arange(4, dtype=np.int32)[None]
    update = DecodedUpdate([everywhere], [np.ones((1, 4), dtype=np.int8)])
    taken = []

    def recorded(side: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        taken.append(dtype)
        return integer_basis_as_float(side, dtype, device)

    parameter = torch.zeros(2, 2)
    weights = [count] * members
    apply_step([parameter], layout, [update] * members, 1.0, 0.0, weights, basis=recorded)
    assert set(taken) == {torch.float32 if members * count < 518 else torch.float64}
    sign_sums = np.full((2, 2), members)
    basis = integer_basis(2).astype(np.int64)
    np.testing.assert_array_equal(parameter.numpy(), -np.sign(basis.T @ sign_sums @ basis))


def test_what_counts_twice_is_as_if_it_were_sent_twice(step: Step) -> None:
    updates = random_updates(LAYOUT, 5)
    sent = [updates[index] for index in (0, 1, 1, 2, 3, 3, 4, 4, 4)]
    for weights, same in (([1, 2, 1, 2, 3], sent), ([1] * 5, updates)):
        parameters = random_parameters(SHAPES)
        apply_step(parameters, LAYOUT, updates, RATE, 0.1, weights, step=step)
        assert_equal_bits(bits_of(parameters), stepped(same, step=step))
    assert not all(map(np.array_equal, stepped(sent, step=step), stepped(updates, step=step)))


@pytest.mark.parametrize(("members", "weight"), [(131, 1), (4096, 2)])
def test_the_largest_swarms_are_exact(members: int, weight: int, step: Step) -> None:
    """All but one send the same: the sums are as large as they can be, beyond what float32 holds."""
    shapes = [(128, 64), (64,)]
    layout = layout_of(shapes)
    update, other = random_updates(layout, 2)
    parameters, most = random_parameters(shapes), members - 1
    expected = reference_step(
        parameters, layout, [*[update] * (weight * most), other], RATE, 0.1, step
    )
    weights = [*[weight] * most, 1]
    apply_step(parameters, layout, [*[update] * most, other], RATE, 0.1, weights, step=step)
    assert_equal_bits(bits_of(parameters), expected)


def differing_signs(sign_sums_NAB: torch.Tensor, bases: list[torch.Tensor]) -> int:
    """Count the signs that differ between columns first, rows first, and reversed frequencies."""
    left, right = bases
    turned = sign_sums_NAB.flip(-2, -1)
    first = torch.sign(left.T @ (sign_sums_NAB @ right))
    others = ((left.T @ sign_sums_NAB) @ right, left.flip(0).T @ (turned @ right.flip(0)))
    return int(sum((first != torch.sign(other)) for other in others).bool().sum())  # type: ignore[union-attr]  # two tensors


def test_the_unrounded_transform_tears_replicas_apart_in_ordinary_rounds() -> None:
    """The known-bad twin: the same sums of signs with the orthonormal float basis, in blocks of 60 × 60.

    Cosines of such sides coincide in many places, and then a handful of signs can cancel. Summing in
    another order gives other signs where a sum is zero except for rounding, and two replicas then
    differ by a whole step, for ever.
    """
    layout = layout_of([(1200, 1200)])
    (tensor,) = layout.tensors
    differing = {"float": 0, "whole": 0}
    for seed, members in enumerate([1, 2, 4]):
        sign_sums = torch.zeros(tensor.blocks, tensor.elements)
        for update in random_updates(layout, members, seed):
            places = torch.from_numpy(update.positions[0]).long()
            sign_sums.scatter_add_(1, places, torch.from_numpy(update.signs[0]).float())
        sign_sums = sign_sums.view(tensor.blocks, 60, 60)
        differing["float"] += differing_signs(sign_sums, [float_basis(60, CPU)] * 2)
        whole = integer_basis_as_float(60, torch.float32, CPU)
        differing["whole"] += differing_signs(sign_sums, [whole] * 2)
    print(f"{differing['float']} signs differ in the float transform")
    assert differing["whole"] == 0
    assert differing["float"] >= 5


def test_parts_of_a_tensor_are_scaled_as_the_whole() -> None:
    """A shard's owner asks for the means over all rows."""
    layout, upper, lower = (layout_of([(rows, 128)]) for rows in (192, 128, 64))
    updates = random_updates(layout, 12)
    whole = random_parameters([(192, 128)])
    parts = [whole[0][:128].clone(), whole[0][128:].clone()]
    squares: list[int] = []

    def remember(sums: Sequence[int]) -> list[Fraction]:
        squares.extend(sums)
        return [Fraction(1)]

    cuts = ((parts[0], upper, slice(0, 4)), (parts[1], lower, slice(4, 6)))
    said = [
        [DecodedUpdate([u.positions[0][own]], [u.signs[0][own]]) for u in updates]
        for _, _, own in cuts
    ]
    for (part, part_layout, _), own in zip(cuts, said, strict=True):
        apply_step([part.clone()], part_layout, own, RATE, 0.1, step="scaled", means=remember)
    for (part, part_layout, _), own in zip(cuts, said, strict=True):
        mean = Fraction(sum(squares), 6)
        apply_step([part], part_layout, own, RATE, 0.1, step="scaled", means=lambda _, m=mean: [m])
    apply_step(whole, layout, updates, RATE, 0.1, step="scaled")
    assert_equal_bits(bits_of([torch.cat(parts)]), bits_of(whole))
    assert squares[0] / 4 != squares[1] / 2


def test_who_has_no_part_is_asked_for_the_means_all_the_same() -> None:
    """Otherwise a rank without tensors would leave the others waiting."""
    asked = []
    nothing = layout_of([])

    def means(sums: Sequence[int]) -> list[Fraction]:
        asked.append(list(sums))
        return []

    apply_step([], nothing, [DecodedUpdate([], [])], RATE, 0.1, step="scaled", means=means)
    assert asked == [[]]


def test_no_update_changes_nothing_and_opposite_ones_leave_weight_decay(step: Step) -> None:
    assert_equal_bits(stepped([], step=step), bits_of(random_parameters(SHAPES)))
    layout = layout_of([(64, 64)])
    (update,) = random_updates(layout, 1)
    opposite = DecodedUpdate(update.positions, [-sign for sign in update.signs])
    parameter = torch.ones(64, 64)
    apply_step([parameter], layout, [update, opposite], 0.5, 0.25, step=step)
    assert (parameter == 0.875).all()


# Random cases. A case is one block of a tensor: its parameters, and the positions and signs of its
# members' updates, are drawn for it alone. Blocks of one tensor share the shape, the members and the
# rates, and are stepped together, so that a million cases take minutes.

# Elements of a tensor: limits the cost of the reference, and gives small blocks more cases.
TENSOR_ELEMENTS = 1 << 18


def draw_shape(generator: np.random.Generator) -> tuple[int, ...]:
    """Return the shape of a tensor whose blocks have sides of 1 to 64, in one to four dimensions."""
    a, b = (int(side) for side in generator.integers(1, MAX_SIDE + 1, 2))
    kind = generator.integers(5)
    if kind == 0:
        return (b * int(generator.integers(1, 2000)),)
    count = max(1, TENSOR_ELEMENTS // (a * b))
    across = int(generator.integers(1, min(count, 12) + 1))
    down = int(generator.integers(1, count // across + 1))
    if kind == 1:
        return (down, a, across * b)
    if kind == 2:
        return (2, down, a, across * b)
    return (down * a, across * b)


def draw_updates(
    layout: UpdateLayout, members: int, generator: np.random.Generator
) -> list[DecodedUpdate]:
    """Return sets of positions, uniform or crowded at the start, and signs with or without a bias."""
    (tensor,) = layout.tensors
    crowd = generator.choice([1.0, 2.0, 8.0])
    lean = generator.choice([0.5, 0.9, 1.0])
    shape = (members, tensor.blocks, tensor.top_k)
    # Ascending numbers, moved apart by one each, form a set.
    room = tensor.elements - tensor.top_k + 1
    drawn = np.sort((room * generator.random(shape) ** crowd).astype(np.int32), axis=2)
    positions = drawn + np.arange(tensor.top_k, dtype=np.int32)
    signs = np.where(generator.random(shape) < lean, 1, -1).astype(np.int8)
    return [DecodedUpdate([p], [s]) for p, s in zip(positions, signs, strict=True)]


def run_cases(seed: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Draw a tensor, step it in every way, and return the number of cases."""
    generator = np.random.default_rng(seed)
    shape = draw_shape(generator)
    layout = layout_of([shape], top_k=int(generator.choice([1, 4, 8, 32])))
    (tensor,) = layout.tensors
    most = max(1, 4_000_000 // tensor.coefficients)
    members = int(generator.choice([1, 2, 3, 5, 8, 32, 130, 200]))
    updates = draw_updates(layout, min(members, most), generator)
    rate = float(np.float32(generator.choice([1e-3, 2.0**-9, 0.1]) * generator.uniform(0.5, 1)))
    decay = float(generator.choice([0.0, 0.1, 0.5]))
    step: Step = "scaled" if generator.random() < 0.5 else "sign"

    def stepped(updates: list[DecodedUpdate]) -> Bits:
        parameters = random_parameters([shape], seed, rate)
        apply_step(parameters, layout, updates, rate, decay, step=step)
        return bits_of(parameters)

    before = random_parameters([shape], seed, rate)
    expected = reference_step(before, layout, updates, rate, decay, step)
    # Two threads wait for each other by spinning, which on a crowded machine takes ten times as long.
    torch.set_num_threads(2 if seed % 32 == 0 else 1)
    fits = exact_in_float32(len(updates), tensor.top_k, tensor.block_rows, tensor.block_columns)
    for in_float32 in (True, False) if fits else (False,):
        monkeypatch.setattr(exact_step, "exact_in_float32", lambda *_, is_=in_float32: is_)
        monkeypatch.setattr(blocks, "CPU_STRIPE", 1 << int(generator.integers(0, 20)))
        shuffled = [updates[i] for i in generator.permutation(len(updates))]
        assert_equal_bits(stepped(shuffled), expected)
    return tensor.blocks


@pytest.mark.parametrize(
    "cases",
    [
        5_000,
        pytest.param(1_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(4 * 3600)]),
    ],
)
def test_random_cases(cases: int, monkeypatch: pytest.MonkeyPatch) -> None:
    done = seed = 0
    while done < cases:
        try:
            done += run_cases(seed, monkeypatch)
        except AssertionError as error:
            raise AssertionError(f"the tensor of seed {seed}: {error}") from error
        seed += 1
    print(f"{done:,} blocks in {seed:,} tensors")
