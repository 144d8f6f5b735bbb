"""The fingerprint depends on every bit and not on how it is computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from distro_node.node.trainer.optimizer import fingerprint as module
from distro_node.node.trainer.optimizer.fingerprint import fingerprint


def parameters(seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in [(17, 5), (40,), (), (3, 2, 2)]]


def reference(tensors: list[torch.Tensor]) -> int:
    """Return the formula's value in Python's unbounded integers."""
    bits = np.concatenate([t.numpy().ravel().view(np.int32) for t in tensors])
    multiplier = 0x9E3779B97F4A7C15
    return sum(int(b) * ((i * multiplier) % 2**64 | 1) for i, b in enumerate(bits)) % 2**64


def test_is_the_formula() -> None:
    for seed in range(5):
        value = fingerprint(parameters(seed))
        assert value == reference(parameters(seed))
        assert 0 <= value < 2**64


def test_pieces_and_threads_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    large = [torch.randn(300_000, generator=torch.Generator().manual_seed(2))]
    expected = fingerprint(large)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    assert fingerprint(large) == expected
    torch.set_num_threads(threads)
    monkeypatch.setattr(module, "_CPU_PIECE", 777)
    assert fingerprint(large) == expected
    monkeypatch.setattr(module, "_ROW", 10)
    assert fingerprint(large) == expected


def test_tensors_count_as_one_row() -> None:
    whole = torch.arange(12, dtype=torch.float32)
    assert fingerprint([whole[:5].clone(), whole[5:].clone()]) == fingerprint([whole])
    assert fingerprint([whole.view(3, 4)]) == fingerprint([whole])


def flipped(tensors: list[torch.Tensor], index: int, element: int, bit: int) -> None:
    """Flip one bit in place; bit 31 is the sign."""
    bits = tensors[index].reshape(-1).view(torch.int32)
    bits[element] ^= (1 << bit) if bit < 31 else -(1 << 31)


def test_every_single_bit_counts() -> None:
    """Sign, exponent and mantissa, in every element of every tensor; and all give different sums."""
    expected = fingerprint(parameters())
    seen = {expected}
    flips = 0
    for index, tensor in enumerate(parameters()):
        for element in range(tensor.numel()):
            for bit in range(32):
                changed = parameters()
                flipped(changed, index, element, bit)
                seen.add(fingerprint(changed))
                flips += 1
    assert len(seen) == flips + 1


@pytest.mark.parametrize("bit", [0, 1, 22, 23, 27, 30, 31])
def test_a_bit_counts_at_every_kind_of_place_in_large_tensors(
    bit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First, last and in the middle, on both sides of each border of tensors and of pieces."""
    monkeypatch.setattr(module, "_CPU_PIECE", 100)
    monkeypatch.setattr(module, "_ROW", 20)
    shapes = [(333,), (), (10, 10), (7, 43), (200,)]
    generator = torch.Generator().manual_seed(5)
    made = [torch.randn(shape, generator=generator) for shape in shapes]
    seen = {fingerprint(made)}
    flips = 0
    for index, tensor in enumerate(made):
        size = tensor.numel()
        for element in {0, 1, 99, 100, 101, 199, 200, size // 2, size - 2, size - 1}:
            if 0 <= element < size:
                flipped(made, index, element, bit)
                seen.add(fingerprint(made))
                flipped(made, index, element, bit)
                flips += 1
    assert len(seen) == flips + 1
    assert fingerprint(made) == reference(made)


def test_exchanged_elements_and_the_sign_of_zero_count() -> None:
    values = torch.tensor([1.0, 2.0, 0.0, 3.0])
    swapped = torch.tensor([2.0, 1.0, 0.0, 3.0])
    negative = torch.tensor([1.0, 2.0, -0.0, 3.0])
    assert len({fingerprint([t]) for t in (values, swapped, negative)}) == 3


def test_any_two_exchanged_elements_count() -> None:
    (values,) = [torch.randn(40, generator=torch.Generator().manual_seed(3))]
    seen = {fingerprint([values])}
    for first in range(40):
        for second in range(first):
            changed = values.clone()
            changed[first], changed[second] = values[second], values[first]
            seen.add(fingerprint([changed]))
    assert len(seen) == 40 * 39 // 2 + 1


def test_two_exchanged_tensors_of_one_shape_count() -> None:
    generator = torch.Generator().manual_seed(4)
    first, between, second = (torch.randn(size, generator=generator) for size in (12, 5, 12))
    assert fingerprint([first, between, second]) != fingerprint([second, between, first])
    assert fingerprint([first, second]) != fingerprint([second, first])


def test_two_flipped_bits_do_not_hide_each_other() -> None:
    """The same bit of two elements, once set and once cleared: a plain sum would not change."""
    ones, zeros = torch.full((64,), 1.0), torch.zeros(64)
    before = fingerprint([ones, zeros])
    for bit in (0, 7, 29):
        changed = [ones.clone(), zeros.clone()]
        flipped(changed, 0, 5, bit)
        flipped(changed, 1, 5, bit)
        assert fingerprint(changed) != before


def test_strided_parameters_count_in_the_order_of_their_indices() -> None:
    values = torch.randn(6, 4, generator=torch.Generator().manual_seed(6))
    assert fingerprint([values.T]) == fingerprint([values.T.contiguous()])
    assert fingerprint([values[:, ::2]]) == fingerprint([values[:, ::2].contiguous()])
