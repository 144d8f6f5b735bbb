"""The shared step: the one place where replicas must agree to the last bit, and do.

1. Signs are added up per coefficient. The sums are whole numbers of at most the member count.
2. The inverse transform uses the protocol's integer basis. All products and partial sums are whole
   numbers; while they are below 2^24 (float32) or 2^53 (float64) every one of them is exact, so
   neither the order of summation nor a fused multiply-add can change the result.
3. Only the sign of the result is used. `p ← p · (1 - lr·wd)` and `p ← p - lr · sign` each round
   once: the factor is one float32 that all members compute in rational arithmetic, and lr · sign is
   exact, so fusing the second line would not change it either.

What is left to IEEE 754 is one multiplication and one subtraction of float32 numbers. Subnormal
numbers, which some devices flush to zero, do not arise: initial parameters have none (`initial`),
and the difference of two normal numbers this far from 2^-126 is zero or far above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import torch

from ...protocol.basis import exact_in_float32, integer_basis
from ...protocol.schedule import nearest_float32
from ...protocol.update import DecodedUpdate, TensorLayout, UpdateLayout
from .blocks import Stripe, block_view, inverse_transform, stripes, whole_basis
from .errors import TrainerFailed


@torch.no_grad()
def apply_step(
    parameters: Sequence[torch.Tensor],
    layout: UpdateLayout,
    updates: Sequence[DecodedUpdate],
    learning_rate: float,
    weight_decay: float,
) -> None:
    """Take one step with these updates, in any order; with none, nothing changes at all.

    `parameters` are contiguous float32 tensors in layout order; `learning_rate` is exactly a
    float32.
    """
    if not updates:
        return
    decay = nearest_float32(1 - Fraction(learning_rate) * Fraction(weight_decay))
    for index, (parameter, tensor) in enumerate(zip(parameters, layout.tensors, strict=True)):
        in_float32 = exact_in_float32(
            len(updates), tensor.top_k, tensor.block_rows, tensor.block_columns
        )
        for stripe in stripes(tensor):
            votes = _count_votes(updates, index, tensor, stripe, parameter.device)
            direction = inverse_signs(votes, in_float32=in_float32)
            view = block_view(parameter.detach(), tensor, stripe)
            if decay != 1.0:
                view.mul_(decay)
            view.sub_(direction.mul_(learning_rate).view(view.shape))


def inverse_signs(votes_NAB: torch.Tensor, *, in_float32: bool) -> torch.Tensor:
    """The signs (-1, 0 or 1, in float32) of the integer inverse transform.

    `votes_NAB`: whole numbers in float32. Devices without float64 (MPS) leave sums beyond float32
    to the CPU.
    """
    device = votes_NAB.device
    place = torch.device("cpu") if not in_float32 and device.type == "mps" else device
    dtype = torch.float32 if in_float32 else torch.float64
    votes = votes_NAB.to(place).to(dtype)
    matrix_a = whole_basis(votes.shape[1], dtype, place)
    matrix_b = whole_basis(votes.shape[2], dtype, place)
    return torch.sign(inverse_transform(votes, matrix_a, matrix_b)).to(torch.float32).to(device)


def check_exactness(device: torch.device) -> None:
    """Try the largest sums that float32 must hold, against whole numbers.

    A device that multiplies in reduced precision behind our back (TF32, bfloat16) would diverge
    from the swarm in the first round; it is better refused now.

    Raises `TrainerFailed` with the kind `no_device`.
    """
    side = 64
    generator = np.random.default_rng(0)
    votes = np.zeros((16, side, side), dtype=np.float32)
    # 130 members × 8 coefficients, all that float32 holds: at once in the lowest frequencies, and
    # spread at random.
    votes[0, :8, 0] = 130
    for block in votes[1:]:
        block.ravel()[generator.integers(0, side * side, 8)] = generator.integers(-130, 131, 8)
    basis = integer_basis(side).astype(np.int64)
    expected = np.sign(basis.T @ votes.astype(np.int64) @ basis)
    for in_float32 in (True, False):
        signs = inverse_signs(torch.from_numpy(votes).to(device), in_float32=in_float32)
        if not np.array_equal(signs.cpu().numpy(), expected):
            raise TrainerFailed(
                "no_device", f"{device} does not multiply float32 exactly and cannot take part"
            )


def _count_votes(
    updates: Sequence[DecodedUpdate],
    index: int,
    tensor: TensorLayout,
    stripe: Stripe,
    device: torch.device,
) -> torch.Tensor:
    """Sums of signs (blocks, a, b): whole numbers, so float32 adds them exactly in any order."""
    votes = torch.zeros((stripe.count, tensor.elements), dtype=torch.float32, device=device)
    for update in updates:
        # Few bytes travel to the device: they are widened there.
        positions = torch.from_numpy(update.positions[index][stripe.blocks]).to(device)
        signs = torch.from_numpy(update.signs[index][stripe.blocks]).to(device)
        votes.scatter_add_(1, positions.to(torch.int64), signs.to(torch.float32))
    return votes.view(stripe.count, tensor.block_rows, tensor.block_columns)
