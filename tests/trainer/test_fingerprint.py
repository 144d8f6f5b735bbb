"""The fingerprint sees every bit and does not depend on how it is computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from distro_node.node.trainer import fingerprint as module
from distro_node.node.trainer.fingerprint import fingerprint


def parameters(seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in [(17, 5), (40,), (), (3, 2, 2)]]


def reference(tensors: list[torch.Tensor]) -> int:
    """The formula in Python's unbounded numbers."""
    bits = np.concatenate([t.numpy().ravel().view(np.uint32) for t in tensors])
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
    monkeypatch.setattr(module, "_PIECE", 777)
    assert fingerprint(large) == expected


def test_tensors_count_as_one_row() -> None:
    whole = torch.arange(12, dtype=torch.float32)
    assert fingerprint([whole[:5].clone(), whole[5:].clone()]) == fingerprint([whole])
    assert fingerprint([whole.view(3, 4)]) == fingerprint([whole])


def test_every_single_bit_counts() -> None:
    expected = fingerprint(parameters())
    seen = {expected}
    flips = 0
    for index, tensor in enumerate(parameters()):
        for element in range(tensor.numel()):
            for bit in range(32):
                changed = parameters()
                bits = changed[index].reshape(-1).view(torch.int32)
                bits[element] ^= (1 << bit) if bit < 31 else -(1 << 31)
                seen.add(fingerprint(changed))
                flips += 1
    assert len(seen) == flips + 1


def test_exchanged_elements_and_the_sign_of_zero_count() -> None:
    values = torch.tensor([1.0, 2.0, 0.0, 3.0])
    swapped = torch.tensor([2.0, 1.0, 0.0, 3.0])
    negative = torch.tensor([1.0, 2.0, -0.0, 3.0])
    assert len({fingerprint([t]) for t in (values, swapped, negative)}) == 3
