"""Blocks made nearly orthogonal: all their singular values are brought near 1.

Each iteration multiplies a matrix X from the left by a·1 + b·S + c·S², with S = X·Xᵀ, and so applies the
odd polynomial a·x + b·x³ + c·x⁵ to its singular values and leaves its singular vectors as they are.
"""

from __future__ import annotations

import math

import torch

from ..device import narrow_type

# Prevents division by zero in a block of zeros; far below the norm of any gradient.
_EPSILON = 1e-12

Iterations = tuple[tuple[float, float, float], ...]
"""The coefficients a, b and c of each iteration."""

# Keller Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024. Polynomials that
# bring more singular values nearer to 1 in three to five iterations (Amsel et al., arXiv 2505.16932)
# learn worse at few bytes (docs/research.md).
_QUINTIC = (3.4445, -4.7750, 2.0315)

MUON: Iterations = (_QUINTIC,) * 5
"""Muon's own: singular values from 0.0015 of the root of the sum of their squares on end between 0.68
and 1.20."""

PARTIAL: Iterations = (_QUINTIC,) * 3
"""After three iterations small singular values are still below 1. They are mostly noise, and if the
gradient was first divided by the root of the second moment, the model learns no worse
(docs/research.md)."""


def iteration_type(device: torch.device) -> torch.dtype:
    """Return bfloat16 if the device has units for it, otherwise float32. bfloat16 suffices, because the
    singular values only have to come close to 1 (Muon's own iterations use it), and it halves the
    memory traffic. Members need not agree on it: an update's signs are the member's own choice."""
    return torch.bfloat16 if narrow_type(device) is torch.bfloat16 else torch.float32


def orthogonalise(
    blocks_NAB: torch.Tensor, iterations: Iterations, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Return U·f(S)·Vᵀ for each block U·S·Vᵀ, in float32, with f(S) close to 1 and scaled so that the
    root mean square of the elements is near 1; the iterations are computed in `dtype`."""
    wide = blocks_NAB if blocks_NAB.shape[1] <= blocks_NAB.shape[2] else blocks_NAB.mT
    norms = wide.square().sum(dim=(1, 2), keepdim=True).sqrt_()
    result = (wide / norms.add_(_EPSILON)).to(dtype)
    for a, b, c in iterations:
        square = result @ result.mT
        cubic = square @ result
        # In place: a polynomial of `square` by itself would copy it twice.
        result = result.baddbmm_(square, cubic, beta=a, alpha=c).add_(cubic, alpha=b)
    result = result.to(torch.float32).mul_(math.sqrt(result.shape[2]))
    return result if wide is blocks_NAB else result.mT.contiguous()
