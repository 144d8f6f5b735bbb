"""The shared step on random cases, each compared with integer arithmetic.

A case is one block of a tensor: its parameters, and the positions and signs of its members' updates,
are drawn for it alone. Blocks of one tensor share the shape, the members and the rates, and are
stepped together, so that a million cases take minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from distro_node.node.trainer.optimizer import blocks, exact_step
from distro_node.node.trainer.optimizer.exact_step import apply_step
from distro_node.protocol.codec.basis import MAX_SIDE, exact_in_float32
from distro_node.protocol.codec.update import DecodedUpdate, UpdateLayout
from distro_node.protocol.wire.manifest import Step
from trainer.exactness import (
    Bits,
    assert_equal_bits,
    bits_of,
    layout_of,
    random_parameters,
    reference_step,
)

FAST_CASES = 5_000
SOAK_CASES = 1_000_000

# Elements of a tensor: limits the cost of the reference, and gives small blocks more cases.
TENSOR_ELEMENTS = 1 << 18


@pytest.fixture(autouse=True)
def _restore_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


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


def run_cases(
    seed: int,
    force_float_type: Callable[[bool], None],
    force_stripe: Callable[[int], None],
) -> int:
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
        force_float_type(in_float32)
        force_stripe(1 << int(generator.integers(0, 20)))
        shuffled = [updates[i] for i in generator.permutation(len(updates))]
        assert_equal_bits(stepped(shuffled), expected)
    return tensor.blocks


def run_until(cases: int, monkeypatch: pytest.MonkeyPatch) -> None:
    done = seed = 0
    while done < cases:
        try:
            done += run_cases(
                seed,
                lambda chosen: monkeypatch.setattr(
                    exact_step, "exact_in_float32", lambda *_: chosen
                ),
                lambda limit: monkeypatch.setattr(blocks, "CPU_STRIPE", limit),
            )
        except AssertionError as error:
            raise AssertionError(f"the tensor of seed {seed}: {error}") from error
        seed += 1
    print(f"{done:,} blocks in {seed:,} tensors")


def test_some_thousand_random_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    run_until(FAST_CASES, monkeypatch)


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_a_million_random_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    run_until(SOAK_CASES, monkeypatch)
