"""Check at each start that a device computes the exact step and its fingerprint to the last bit.

A device that multiplies with fewer digits than float32 has (TF32, bfloat16, emulation), that rounds
two operations as one, or that sums wrongly diverges from the swarm in its first round. So before a
trainer takes part it runs the step itself (`exact_step.apply_step`) and the fingerprint on small tensors
of every kind, and compares the result with numpy's, which computes the transform in integers and rounds
once in each further operation. Libraries choose their kernels by size, so the transform's matrix
products are also computed in the largest sizes that the swarm's model has on this device; a sample of
their blocks is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import torch

from ....protocol.codec.basis import integer_basis, most_in_float32
from ....protocol.codec.scaling import MAX_MOVE, step_factor
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
# Update weights: few, whose sums float32 holds, and many, whose sums it does not (the bound is 130).
_SMALL_WEIGHTS, _LARGE_WEIGHTS = (1, 2, 1), (127, 127, 5)
_RATE, _DECAY = 2.0**-9, 0.1

# Number of product sizes that are checked, the largest first (real models have about half as many), and
# number of random blocks that are compared in each, in addition to the first and the last block.
_MAX_SIZES, _COMPARED_BLOCKS = 12, 14
# The largest product that is checked, in elements: twice a GPU's stripe. A product is larger only if a
# single block row of its matrix is.
_MAX_ELEMENTS = 1 << 25
# Sums in the float64 check, as a multiple of the largest that float32 holds.
_FLOAT64_FACTOR = 64


def check_exactness(device: torch.device, layout: UpdateLayout) -> None:
    """Run the exact step and the fingerprint on a device and compare every bit.

    `layout` is the swarm's; it determines the sizes of the products that its steps compute here.

    Raises `TrainerFailed` with the kind `no_device`, naming what differs.
    """
    for tensor, rows in _product_sizes(layout, device):
        for in_float32 in (True, False):
            _check_product(device, tensor, rows, in_float32=in_float32)
    for step in ("sign", "scaled"):
        for update_weights in (_SMALL_WEIGHTS, _LARGE_WEIGHTS):
            for decay in (0.0, _DECAY):
                _check_step(device, step, update_weights, decay)


def _check_step(
    device: torch.device, step: Step, update_weights: Sequence[int], decay: float
) -> None:
    generator = np.random.default_rng(0)
    layout = update_layout(
        [ParameterSpec(name=f"p{i}", shape=shape) for i, shape in enumerate(_SHAPES)], _SIDE, _TOP_K
    )
    updates = [_random_update(layout, generator) for _ in update_weights]
    start = [generator.standard_normal(shape).astype(np.float32) * 0.02 for shape in _SHAPES]
    parameters = [torch.tensor(values, device=device) for values in start]
    apply_step(parameters, layout, updates, _RATE, decay, update_weights, step=step)
    expected = [
        _expected_values(values, tensor, index, updates, update_weights, decay, step)
        for index, (values, tensor) in enumerate(zip(start, layout.tensors, strict=True))
    ]
    differing = sum(
        int(np.count_nonzero(found.cpu().numpy().view(np.uint32) != right.view(np.uint32)))
        for found, right in zip(parameters, expected, strict=True)
    )
    if differing:
        elements = sum(values.size for values in start)
        raise _inexact(
            device,
            f"{differing} of {elements} parameters after a {step} step with "
            f"{'some' if decay else 'no'} weight decay",
        )
    if fingerprint(parameters) != _fingerprint(expected):
        raise _inexact(device, "the fingerprint of the parameters")


def _product_sizes(
    layout: UpdateLayout, device: torch.device
) -> Iterator[tuple[TensorLayout, int]]:
    """Yield the largest matrix products in a step of this layout, one of each size: a tensor, and the
    number of rows of one of its stripes."""
    sizes: dict[tuple[int, ...], tuple[TensorLayout, int]] = {}
    for tensor in layout.tensors:
        for stripe in stripes(tensor, device) if tensor.sides else ():
            rows = stripe.rows.stop - stripe.rows.start
            size = (rows, tensor.columns, tensor.block_rows, tensor.block_columns)
            sizes.setdefault(size, (tensor, rows))
    possible = [size for size in sizes if size[0] * size[1] <= _MAX_ELEMENTS]
    for size in sorted(possible, key=lambda each: each[0] * each[1], reverse=True)[:_MAX_SIZES]:
        yield sizes[size]


def _check_product(
    device: torch.device, tensor: TensorLayout, rows: int, *, in_float32: bool
) -> None:
    a, b, top_k = tensor.block_rows, tensor.block_columns, tensor.top_k
    most = most_in_float32(top_k, a, b)
    if in_float32 and not most:
        # With so many coefficients per block even a single update needs float64.
        return
    largest = most if in_float32 else _FLOAT64_FACTOR * max(1, most)
    generator = np.random.default_rng(0)
    # The largest possible sums, at the lowest frequencies of the first block; elsewhere random ones.
    grid = np.zeros((rows // a, a, tensor.across, b), dtype=np.float32)
    blocks = rows // a * tensor.across
    chosen = generator.choice(blocks, min(blocks, _COMPARED_BLOCKS), replace=False)
    compared = sorted({0, blocks - 1, *map(int, chosen)})
    for block in compared:
        values = generator.integers(-largest, largest + 1, top_k) if block else largest
        places = generator.choice(a * b, top_k, replace=False) if block else np.arange(top_k)
        grid[block // tensor.across, places // b, block % tensor.across, places % b] = values
    sums = torch.from_numpy(grid.reshape(rows, tensor.columns)).to(device)
    found = inverse_sums(sums, tensor, in_float32=in_float32).cpu().numpy().reshape(grid.shape)
    left, right = _integer_basis(a), _integer_basis(b)
    for block in compared:
        place = block // tensor.across, slice(None), block % tensor.across
        expected = left.T @ grid[place].astype(np.int64) @ right
        if not np.array_equal(found[place], expected.astype(np.float32)):
            raise _inexact(
                device,
                f"products of {rows} x {tensor.columns} in float{32 if in_float32 else 64}",
            )


def _integer_basis(side: int) -> npt.NDArray[np.int64]:
    # A side of 1 is not transformed.
    return integer_basis(side).astype(np.int64) if side > 1 else np.ones((1, 1), np.int64)


def _inexact(device: torch.device, what: str) -> TrainerFailed:
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


def _expected_values(
    old: npt.NDArray[np.float32],
    tensor: TensorLayout,
    index: int,
    updates: Sequence[DecodedUpdate],
    update_weights: Sequence[int],
    decay: float,
    step: Step,
) -> npt.NDArray[np.float32]:
    """Return the values of one tensor that `apply_step` must produce."""
    a, b = tensor.block_rows, tensor.block_columns
    sign_sums = np.zeros((tensor.blocks, tensor.elements), dtype=np.int64)
    block = np.arange(tensor.blocks)[:, None]
    for update, weight in zip(updates, update_weights, strict=True):
        sign_sums[block, update.positions[index]] += weight * update.signs[index].astype(np.int64)
    left, right = integer_basis(a).astype(np.int64), integer_basis(b).astype(np.int64)
    sums = left.T @ sign_sums.reshape(-1, a, b) @ right
    rate = np.float32(_RATE)
    if step == "sign" or not scalable(tensor):
        change_blocks = rate * np.sign(sums).astype(np.float32)
    else:
        mean = Fraction(int((sign_sums**2).sum()), tensor.blocks)
        max_move = np.float32(MAX_MOVE) * rate
        factor = np.float32(step_factor(_RATE, mean))
        change_blocks = np.clip(sums.astype(np.float32) * factor, -max_move, max_move)
    grid = change_blocks.reshape(tensor.rows // a, tensor.columns // b, a, b)
    change = grid.transpose(0, 2, 1, 3).reshape(old.shape).astype(np.float32, copy=False)
    kept = np.float32(nearest_float32(1 - Fraction(_RATE) * Fraction(decay)))
    result: npt.NDArray[np.float32] = (old * kept if decay else old) - change
    return result


def _fingerprint(parameters: Sequence[npt.NDArray[np.float32]]) -> int:
    """Return `fingerprint.fingerprint` of these parameters, computed by numpy in wrapping 64-bit
    integers."""
    bits = np.concatenate([values.reshape(-1).view(np.int32) for values in parameters])
    multiplier = 0x9E3779B97F4A7C15
    weights = (np.arange(bits.size, dtype=np.uint64) * np.uint64(multiplier)) | np.uint64(1)
    return int((bits.astype(np.int64).view(np.uint64) * weights).sum(dtype=np.uint64))
