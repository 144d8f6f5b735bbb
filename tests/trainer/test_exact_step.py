"""The shared step gives the same bits for any order, number of threads, float type or strides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
import torch
from distro_node.node.trainer.optimizer import blocks, exact_step
from distro_node.node.trainer.optimizer.blocks import float_basis, integer_basis_as_float
from distro_node.node.trainer.optimizer.exact_step import apply_step, inverse_sums
from distro_node.protocol.codec.basis import exact_in_float32, integer_basis
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
from trainer.support import CPU, inverse_transform

LAYOUT = layout_of(SHAPES)


@pytest.fixture(autouse=True)
def _restore_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def force_float_type(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Return a function that forces float32 or float64, whatever the bound."""
    return lambda in_float32: monkeypatch.setattr(
        exact_step, "exact_in_float32", lambda *_: in_float32
    )


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


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("members", [1, 2, 5, 32])
def test_agrees_with_whole_number_arithmetic(members: int, decay: float, step: Step) -> None:
    updates = random_updates(LAYOUT, members)
    expected = reference_step(random_parameters(SHAPES), LAYOUT, updates, RATE, decay, step)
    assert_equal_bits(stepped(updates, decay=decay, step=step), expected)


@pytest.mark.parametrize(("chunk", "top_k"), [(64, 1), (64, 4095), (16, 8), (7, 49), (1, 1)])
def test_agrees_for_other_blocks_and_counts(chunk: int, top_k: int, step: Step) -> None:
    layout = layout_of(SHAPES, top_k, chunk)
    updates = random_updates(layout, 3)
    expected = reference_step(random_parameters(SHAPES), layout, updates, RATE, 0.1, step)
    assert_equal_bits(stepped(updates, layout, step=step), expected)


def test_same_bits_for_any_order_of_updates(step: Step) -> None:
    updates = random_updates(LAYOUT, 9)
    expected = stepped(updates, step=step)
    generator = np.random.default_rng(0)
    for _ in range(10):
        again = [updates[i] for i in generator.permutation(9)]
        assert_equal_bits(stepped(again, step=step), expected)


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


@pytest.mark.parametrize("members", [1, 4, 130])
def test_same_bits_in_float32_and_float64(
    members: int, step: Step, force_float_type: Callable[[bool], None]
) -> None:
    """Up to 130 members × 8 coefficients in full blocks: the most that float32 is used for."""
    updates = random_updates(LAYOUT, members)
    assert all(
        exact_in_float32(members, t.top_k, t.block_rows, t.block_columns) for t in LAYOUT.tensors
    )
    expected = stepped(updates, step=step)
    for in_float32 in (True, False):
        force_float_type(in_float32)
        assert_equal_bits(stepped(updates, step=step), expected)


@pytest.mark.parametrize("limit", [1, 2000, 1 << 24])
def test_same_bits_for_any_size_of_stripes(
    limit: int, step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates = random_updates(LAYOUT, 4)
    expected = stepped(updates, step=step)
    monkeypatch.setattr(blocks, "CPU_STRIPE", limit)
    assert_equal_bits(stepped(updates, step=step), expected)


@pytest.mark.parametrize("limit", [0, 5000, 30_000])
def test_a_scaled_step_has_the_same_bits_whatever_sums_it_keeps(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates = random_updates(LAYOUT, 4)
    expected = stepped(updates, step="scaled")
    monkeypatch.setattr(exact_step, "CPU_KEPT_SUMS", limit)
    assert_equal_bits(stepped(updates, step="scaled"), expected)


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


def test_parameters_of_a_module_are_stepped_in_place() -> None:
    layout = layout_of([(64, 64)])
    parameter = torch.nn.Parameter(torch.zeros(64, 64))
    memory = parameter.data_ptr()
    apply_step([parameter], layout, random_updates(layout, 1), 0.5, 0.0)
    assert parameter.data_ptr() == memory
    assert parameter.grad_fn is None
    assert set(parameter.detach().unique().tolist()) <= {-0.5, 0.0, 0.5}


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
    parameters = random_parameters(SHAPES)
    apply_step(parameters, LAYOUT, updates, RATE, 0.1, [1, 2, 1, 2, 3], step=step)
    sent = [updates[index] for index in (0, 1, 1, 2, 3, 3, 4, 4, 4)]
    assert_equal_bits(bits_of(parameters), stepped(sent, step=step))
    assert not all(map(np.array_equal, bits_of(parameters), stepped(updates, step=step)))
    # Counting each once equals a step without weights.
    again = random_parameters(SHAPES)
    apply_step(again, LAYOUT, updates, RATE, 0.1, [1] * 5, step=step)
    assert_equal_bits(bits_of(again), stepped(updates, step=step))


@pytest.mark.parametrize("members", [1024, 4096])
def test_the_largest_swarms_are_exact_where_all_count_twice(members: int, step: Step) -> None:
    """All but one send the same: the sums are as large as they can be."""
    layout = layout_of([(64, 64)])
    update, other = random_updates(layout, 2)
    parameters = random_parameters([(64, 64)])
    sent = [update] * (members - 1) + [other]
    expected = reference_step(parameters, layout, [*sent, *sent[:-1]], RATE, 0.1, step)
    apply_step(parameters, layout, sent, RATE, 0.1, [2] * (members - 1) + [1], step=step)
    assert_equal_bits(bits_of(parameters), expected)


@pytest.mark.parametrize("members", [131, 1024])
def test_the_largest_swarms_agree_with_whole_number_arithmetic(members: int, step: Step) -> None:
    """All members send nearly the same: the sums grow beyond what float32 holds."""
    shapes = [(128, 64), (64,)]
    layout = layout_of(shapes)
    few = random_updates(layout, 3)
    updates = [few[0]] * (members - 2) + few[1:]
    parameters = random_parameters(shapes)
    expected = reference_step(parameters, layout, updates, RATE, 0.1, step)
    apply_step(parameters, layout, updates, RATE, 0.1, step=step)
    assert_equal_bits(bits_of(parameters), expected)


def test_float32_does_lose_whole_numbers_beyond_the_bound() -> None:
    """So the switch to float64 is necessary."""
    generator = np.random.default_rng(3)
    sign_sums = generator.integers(-4096, 4097, (64, 64))
    sign_sums_t = torch.from_numpy(sign_sums.astype(np.float32))
    basis = torch.from_numpy(integer_basis(64).astype(np.float32))
    whole = integer_basis(64).astype(np.int64)
    exact_sums = whole.T @ sign_sums @ whole
    in_float32 = inverse_transform(sign_sums_t[None], basis, basis)[0].numpy().astype(np.int64)
    assert (in_float32 != exact_sums).any()
    (tensor,) = layout_of([(64, 64)]).tensors
    found = inverse_sums(sign_sums_t, tensor, in_float32=False).numpy()
    np.testing.assert_array_equal(found, exact_sums.astype(np.float32))


class TestTheUnroundedTransform:
    """The known-bad twin: the same sums of signs, the orthonormal float basis, and a sign.

    Summing in another order (another BLAS, device or thread count) gives other signs where a sum is
    zero except for rounding; two replicas then differ by a whole step, for ever.
    """

    def differing_signs(self, sign_sums_NAB: torch.Tensor, bases: list[torch.Tensor]) -> int:
        """Count the signs that differ between columns first, rows first, and reversed frequencies."""
        left, right = bases
        turned = sign_sums_NAB.flip(-2, -1)
        orders = (
            torch.sign(left.T @ (sign_sums_NAB @ right)),
            torch.sign((left.T @ sign_sums_NAB) @ right),
            torch.sign(left.flip(0).T @ (turned @ right.flip(0))),
        )
        return int(((orders[0] != orders[1]) | (orders[0] != orders[2])).sum())

    @pytest.mark.parametrize("shape", [(1200, 1200), (43**3,)])
    def test_tears_replicas_apart_in_ordinary_rounds(self, shape: tuple[int, ...]) -> None:
        """Sums of signs as in training, in blocks of 60 × 60 and of 43: widths of 300, 1,200 or 344.

        Cosines of such sides coincide in many places, and then a handful of signs can cancel. On
        sides of 64 that happens for about one sign in a hundred million: a dozen in each round of a
        model with 1.2 billion parameters.
        """
        layout = layout_of([shape])
        (tensor,) = layout.tensors
        sides = tensor.block_rows, tensor.block_columns
        differing = {"float": 0, "whole": 0}
        signs = 0
        for seed, members in enumerate([1, 2, 4]):
            sign_sums = torch.zeros(tensor.blocks, tensor.elements)
            for update in random_updates(layout, members, seed):
                places = torch.from_numpy(update.positions[0]).long()
                sign_sums.scatter_add_(1, places, torch.from_numpy(update.signs[0]).float())
            sign_sums = sign_sums.view(tensor.blocks, *sides)
            signs += sign_sums.numel()
            float_bases = [float_basis(side, CPU) for side in sides]
            whole_bases = [integer_basis_as_float(side, torch.float32, CPU) for side in sides]
            differing["float"] += self.differing_signs(sign_sums, float_bases)
            differing["whole"] += self.differing_signs(sign_sums, whole_bases)
        print(f"{sides}: of {signs:,} signs {differing['float']} differ in the float transform")
        assert differing["whole"] == 0
        assert differing["float"] >= 5

    def test_tears_them_apart_wholesale_where_signs_cancel(self) -> None:
        """Signs for a frequency pair and against its mirror image cancel on the diagonal; a float
        transform finds only rounding errors there."""
        generator = np.random.default_rng(0)
        sign_sums = torch.zeros(20, 64, 64)
        for block in sign_sums:
            for row, column in generator.integers(0, 64, (4, 2)):
                block[row, column] += 1
                block[column, row] -= 1
        differing = self.differing_signs(sign_sums, [float_basis(64, CPU)] * 2)
        print(f"of {sign_sums.numel():,} signs {differing} differ in the float transform")
        assert (
            self.differing_signs(sign_sums, [integer_basis_as_float(64, torch.float32, CPU)] * 2)
            == 0
        )
        assert differing > 100


def spread(layout: UpdateLayout, members: int, seed: int = 0) -> list[DecodedUpdate]:
    """Return updates without a preferred frequency, like those of orthogonal blocks."""
    generator = np.random.default_rng(seed)

    def positions(blocks: int, elements: int, count: int) -> npt.NDArray[np.int32]:
        drawn = [generator.choice(elements, count, replace=False) for _ in range(blocks)]
        return np.sort(np.array(drawn, np.int32), axis=1)

    return [
        DecodedUpdate(
            [positions(t.blocks, t.elements, t.top_k) for t in layout.tensors],
            [
                generator.choice(np.array([-1, 1], np.int8), (t.blocks, t.top_k))
                for t in layout.tensors
            ],
        )
        for _ in range(members)
    ]


def test_a_scaled_step_is_about_as_long_as_one_of_signs() -> None:
    """In the root mean square over a matrix: clipping removes little, and the basis is rounded."""
    shapes = [(256, 192), (129, 134), (200, 60)]
    layout = layout_of(shapes)
    parameters = [torch.zeros(shape) for shape in shapes]
    apply_step(parameters, layout, spread(layout, 8), RATE, 0.0, step="scaled")
    for parameter in parameters:
        assert 0.9 * RATE < float(parameter.square().mean().sqrt()) < 1.01 * RATE


def test_no_element_goes_further_than_two_learning_rates() -> None:
    """Even if all members concentrate all their signs in one corner of every block."""
    layout = layout_of([(128, 128)])
    lowest = np.tile(np.array([0, 1, 2, 3, 64, 65, 66, 128], np.int32), (4, 1))
    corner = DecodedUpdate([lowest], [np.ones((4, 8), np.int8)])
    parameter = torch.zeros(128, 128)
    apply_step([parameter], layout, [corner] * 5, RATE, 0.0, step="scaled")
    assert float(parameter.abs().max()) == 2 * RATE
    assert float(parameter[0, 0]) == -2 * RATE


def test_a_scaled_step_moves_vectors_by_signs() -> None:
    shapes = [(960,), (61, 1)]
    layout = layout_of(shapes)
    updates = random_updates(layout, 5)
    found = [[torch.zeros(shape) for shape in shapes] for _ in range(2)]
    for step, parameters in zip(("sign", "scaled"), found, strict=True):
        apply_step(parameters, layout, updates, RATE, 0.0, step=step)
    assert_equal_bits(*map(bits_of, found))


def test_a_scaled_step_goes_where_the_sum_does() -> None:
    """A coefficient with three votes moves about three times as much as one with a single vote, and
    one without votes hardly at all."""
    layout = layout_of([(64, 64)])
    often, once = spread(layout, 2)
    parameter = torch.zeros(64, 64)
    apply_step([parameter], layout, [often] * 3 + [once], RATE, 0.0, step="scaled")
    basis = float_basis(64, CPU)
    found = (basis @ -parameter @ basis.T).view(-1).numpy()
    said = [(found[update.positions[0][0]] * update.signs[0][0]).mean() for update in (often, once)]
    assert said[0] / said[1] == pytest.approx(3, rel=0.2)
    silent = np.delete(found, np.concatenate([often.positions[0][0], once.positions[0][0]]))
    assert np.abs(silent).max() < 0.5 * said[1]


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


def test_no_update_changes_nothing(step: Step) -> None:
    assert_equal_bits(stepped([], step=step), bits_of(random_parameters(SHAPES)))


def test_opposite_signs_cancel_but_weight_decay_stays(step: Step) -> None:
    layout = layout_of([(64, 64)])
    (update,) = random_updates(layout, 1)
    opposite = DecodedUpdate(update.positions, [-sign for sign in update.signs])
    parameter = torch.ones(64, 64)
    apply_step([parameter], layout, [update, opposite], 0.5, 0.25, step=step)
    assert (parameter == 0.875).all()


def test_another_basis_is_another_step() -> None:
    """So an experiment that passes its own basis does measure it."""

    def flat(side: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.ones((side, side), dtype=dtype, device=device)

    layout = layout_of([(64, 64)])
    updates = random_updates(layout, 1)
    parameter = torch.zeros(64, 64)
    apply_step([parameter], layout, updates, 1.0, 0.0, basis=flat)
    assert (parameter == -np.sign(updates[0].signs[0].sum())).all()
