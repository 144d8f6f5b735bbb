"""Iterations that even out singular values, beside the same polynomials of values found by SVD."""

from __future__ import annotations

import pytest
import torch
from distro_node.node.trainer.optimizer.orthogonal import (
    MUON,
    PARTIAL,
    orthogonalise,
)
from trainer.support import by_svd

KINDS = {"muon": MUON, "partial": PARTIAL}


def blocks_of(a: int, b: int, *, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(a + b + rank)
    left, right = (torch.randn(5, *shape, generator=generator) for shape in ((a, rank), (rank, b)))
    return left @ right


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("a", "b"), [(16, 16), (64, 64), (64, 16), (16, 64)])
def test_the_polynomials_are_applied_to_singular_values(kind: str, a: int, b: int) -> None:
    blocks = blocks_of(a, b, rank=min(a, b))
    before = blocks.clone()
    found = orthogonalise(blocks, KINDS[kind])
    expected = by_svd(blocks, KINDS[kind])
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-4)
    assert torch.equal(blocks, before)


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_of_zeros_stays_so(kind: str) -> None:
    assert not orthogonalise(torch.zeros(2, 16, 16), KINDS[kind]).any()


def test_all_but_the_smallest_values_end_near_one() -> None:
    """Where the docstring says."""
    values = torch.linspace(0.0016, 1.0, 20_000, dtype=torch.float64)
    for a, b, c in MUON:
        values = a * values + b * values**3 + c * values**5
    assert 0.679 < values.min() < values.max() < 1.21


@pytest.mark.parametrize("rank", [1, 2, 16])
@pytest.mark.parametrize("size", [1e-15, 1.0, 1e15])
def test_rounding_to_bfloat16_makes_no_value_explode(rank: int, size: float) -> None:
    """The largest singular value of a block of rank 1 is 1 and may round to more."""
    found = orthogonalise(size * blocks_of(64, 64, rank=rank), MUON, torch.bfloat16)
    assert torch.linalg.matrix_norm(found / 8, 2).max() < 1.35
