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
    """Also of strided parameters, in the order of their indices; so any two that differ in a bit, or in
    the order of two elements, differ in their fingerprints."""
    for seed in range(3):
        made = parameters(seed)
        assert fingerprint(made) == reference(made)
        for strided in (made[0].T, made[0][:, ::2]):
            assert fingerprint([strided]) == reference([strided.contiguous()])


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


@pytest.mark.parametrize("bit", [0, 23, 31])
def test_a_bit_counts_at_every_kind_of_place_in_large_tensors(
    bit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First, last and in the middle, on both sides of each border of tensors and of pieces."""
    monkeypatch.setattr(module, "_CPU_PIECE", 100)
    monkeypatch.setattr(module, "_ROW", 20)
    generator = torch.Generator().manual_seed(5)
    shapes = [(333,), (), (10, 10), (7, 43), (200,)]
    made = [torch.randn(shape, generator=generator) for shape in shapes]
    seen, flips = {fingerprint(made)}, 0
    for tensor in made:
        size, bits = tensor.numel(), tensor.reshape(-1).view(torch.int32)
        for element in {0, 1, 99, 100, 101, 199, 200, size // 2, size - 2, size - 1}:
            if 0 <= element < size:
                bits[element] ^= (1 << bit) if bit < 31 else -(1 << 31)
                seen.add(fingerprint(made))
                assert fingerprint(made) == reference(made)
                bits[element] ^= (1 << bit) if bit < 31 else -(1 << 31)
                flips += 1
    assert len(seen) == flips + 1
