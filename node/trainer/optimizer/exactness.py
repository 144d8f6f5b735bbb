"""Check at each start that a device computes the shared step and its fingerprint to the last bit.

A device that multiplies with fewer digits than float32 has (TF32, bfloat16, emulation), that rounds
two operations as one, or that sums wrongly diverges from the swarm in its first round. So before a
trainer takes part it runs the step itself (`exact.apply_step`) and the fingerprint on small tensors
of every kind, and compares the result with numpy's: the transform in integers, the rest one rounding
at a time. Libraries choose their kernels by size, so one product has the size that the stripes of a
large matrix have on this device; of that one a sample of blocks is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import torch

from ....protocol.codec.basis import integer_basis
from ....protocol.codec.scaling import FURTHEST, step_factor
from ....protocol.codec.schedule import nearest_float32
from ....protocol.codec.update import DecodedUpdate, TensorLayout, UpdateLayout, update_layout
from ....protocol.wire.manifest import ParameterSpec, Step
from ...training.errors import TrainerFailed
from .blocks import stripes
from .exact_step import apply_step, inverse_sums, scalable
from .fingerprint import fingerprint

# Whole blocks, blocks that shrink to a divisor, vectors and more than two dimensions.
_SHAPES = ((128, 192), (43, 67), (100, 30), (96,), (7,), (2, 3, 40))
_SIDE, _TOP_K = 64, 8
# Update weights: sums that float32 holds, and sums beyond it (130 is the bound).
_FEW, _MANY = (1, 2, 1), (127, 127, 5)
_RATE, _DECAY = 2.0**-9, 0.1

# The matrix whose first stripe is the large product, and the number of its blocks that are compared.
_LARGE = (8192, 8192)
_COMPARED = 32


def check_exactness(device: torch.device) -> None:
    """Run the shared step and the fingerprint on a device and compare every bit.

    Raises `TrainerFailed` with the kind `no_device`, naming what differs.
    """
    for in_float32 in (True, False):
        _check_large_product(device, in_float32=in_float32)
    for step in ("sign", "scaled"):
        for counts in (_FEW, _MANY):
            for decay in (0.0, _DECAY):
                _check_step(device, step, counts, decay)


def _check_step(device: torch.device, step: Step, counts: Sequence[int], decay: float) -> None:
    generator = np.random.default_rng(0)
    layout = update_layout(
        [ParameterSpec(name=f"p{i}", shape=shape) for i, shape in enumerate(_SHAPES)], _SIDE, _TOP_K
    )
    updates = [_random_update(layout, generator) for _ in counts]
    start = [generator.standard_normal(shape).astype(np.float32) * 0.02 for shape in _SHAPES]
    parameters = [torch.tensor(values, device=device) for values in start]
    apply_step(parameters, layout, updates, _RATE, decay, counts, step=step)
    expected = [
        _stepped(values, tensor, index, updates, counts, decay, step)
        for index, (values, tensor) in enumerate(zip(start, layout.tensors, strict=True))
    ]
    differing = sum(
        int(np.count_nonzero(found.cpu().numpy().view(np.uint32) != right.view(np.uint32)))
        for found, right in zip(parameters, expected, strict=True)
    )
    if differing:
        elements = sum(values.size for values in start)
        raise _refused(
            device,
            f"{differing} of {elements} parameters after a {step} step with "
            f"{'some' if decay else 'no'} weight decay",
        )
    if fingerprint(parameters) != _fingerprint(expected):
        raise _refused(device, "the fingerprint of the parameters")


def _check_large_product(device: torch.device, *, in_float32: bool) -> None:
    layout = update_layout([ParameterSpec(name="", shape=_LARGE)], _SIDE, _TOP_K).tensors[0]
    stripe = next(stripes(layout, device))
    rows, across = stripe.rows.stop, layout.columns // _SIDE
    generator = np.random.default_rng(0)
    # The largest sums that float32 must hold, at the lowest frequencies, and others spread at random.
    grid = np.zeros((rows // _SIDE, _SIDE, across, _SIDE), dtype=np.float32)
    chosen = generator.choice(rows // _SIDE * across, _COMPARED, replace=False)
    for block in chosen:
        below, beside = divmod(int(block), across)
        places = generator.choice(_SIDE * _SIDE, _TOP_K, replace=False)
        grid[below, places // _SIDE, beside, places % _SIDE] = generator.integers(-130, 131, _TOP_K)
    grid[0, :_TOP_K, 0, 0] = 130
    sums = torch.from_numpy(grid.reshape(rows, layout.columns)).to(device)
    found = inverse_sums(sums, layout, in_float32=in_float32).cpu().numpy().reshape(grid.shape)
    basis = integer_basis(_SIDE).astype(np.int64)
    for block in (0, *chosen):
        below, beside = divmod(int(block), across)
        expected = basis.T @ grid[below, :, beside].astype(np.int64) @ basis
        if not np.array_equal(found[below, :, beside], expected):
            raise _refused(device, f"products in float{32 if in_float32 else 64}")


def _refused(device: torch.device, what: str) -> TrainerFailed:
    return TrainerFailed(
        "no_device",
        f"{device} does not compute exactly and would leave the swarm in its first round: {what} differ",
    )


def _random_update(layout: UpdateLayout, generator: np.random.Generator) -> DecodedUpdate:
    """Return a random update, except that in the first block of each tensor the lowest frequencies,
    all with one sign, make the largest possible sum."""
    positions, signs = [], []
    for tensor in layout.tensors:
        draw = generator.random((tensor.blocks, tensor.elements))
        draw[0] = np.arange(tensor.elements)
        chosen = np.argsort(draw, axis=1)[:, : tensor.top_k]
        positions.append(np.sort(chosen, axis=1).astype(np.int32))
        sign = generator.choice(np.array([-1, 1], np.int8), (tensor.blocks, tensor.top_k))
        sign[0] = 1
        signs.append(sign)
    return DecodedUpdate(positions, signs)


def _stepped(
    old: npt.NDArray[np.float32],
    tensor: TensorLayout,
    index: int,
    updates: Sequence[DecodedUpdate],
    counts: Sequence[int],
    decay: float,
    step: Step,
) -> npt.NDArray[np.float32]:
    """Return the values of one tensor that `apply_step` must produce."""
    a, b = tensor.block_rows, tensor.block_columns
    sign_sums = np.zeros((tensor.blocks, tensor.elements), dtype=np.int64)
    block = np.arange(tensor.blocks)[:, None]
    for update, count in zip(updates, counts, strict=True):
        sign_sums[block, update.positions[index]] += count * update.signs[index].astype(np.int64)
    left, right = integer_basis(a).astype(np.int64), integer_basis(b).astype(np.int64)
    sums = left.T @ sign_sums.reshape(-1, a, b) @ right
    rate = np.float32(_RATE)
    if step == "sign" or not scalable(tensor):
        moved = rate * np.sign(sums).astype(np.float32)
    else:
        mean = Fraction(int((sign_sums**2).sum()), tensor.blocks)
        furthest = np.float32(FURTHEST) * rate
        factor = np.float32(step_factor(_RATE, mean))
        moved = np.clip(sums.astype(np.float32) * factor, -furthest, furthest)
    grid = moved.reshape(tensor.rows // a, tensor.columns // b, a, b)
    whole = grid.transpose(0, 2, 1, 3).reshape(old.shape).astype(np.float32, copy=False)
    kept = np.float32(nearest_float32(1 - Fraction(_RATE) * Fraction(decay)))
    result: npt.NDArray[np.float32] = (old * kept if decay else old) - whole
    return result


def _fingerprint(parameters: Sequence[npt.NDArray[np.float32]]) -> int:
    """Return `fingerprint.fingerprint` of these parameters, computed by numpy in wrapping 64-bit
    integers."""
    bits = np.concatenate([values.reshape(-1).view(np.int32) for values in parameters])
    multiplier = 0x9E3779B97F4A7C15
    weights = (np.arange(bits.size, dtype=np.uint64) * np.uint64(multiplier)) | np.uint64(1)
    return int((bits.astype(np.int64).view(np.uint64) * weights).sum(dtype=np.uint64))
