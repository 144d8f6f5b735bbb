"""Cutting of parameter tensors into transform blocks, a bounded piece at a time.

A large tensor is processed in *stripes* of whole block rows, so that the copies a transform needs
stay small compared with the model, whatever the size of a single tensor.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ....protocol.codec.basis import integer_basis, orthonormal_basis
from ....protocol.codec.update import TensorLayout
from ...training.memory_options import CPU_STRIPE, GPU_STRIPE


@dataclass(frozen=True)
class Stripe:
    """Some block rows of a tensor: the tensor's rows, and the blocks in raster order."""

    rows: slice
    blocks: slice

    @property
    def count(self) -> int:
        """Number of blocks in the stripe."""
        return self.blocks.stop - self.blocks.start


def stripes(layout: TensorLayout, device: torch.device) -> Iterator[Stripe]:
    """Cut a tensor into stripes of a size that suits the device, at least one block row each."""
    across = layout.columns // layout.block_columns
    block_rows = layout.rows // layout.block_rows
    limit = CPU_STRIPE if device.type == "cpu" else GPU_STRIPE
    step = max(1, limit // (layout.block_rows * layout.columns))
    for start in range(0, block_rows, step):
        stop = min(start + step, block_rows)
        yield Stripe(
            rows=slice(start * layout.block_rows, stop * layout.block_rows),
            blocks=slice(start * across, stop * across),
        )


def block_view(tensor_RC: torch.Tensor, layout: TensorLayout, stripe: Stripe) -> torch.Tensor:
    """Return a view of a stripe as (block rows, blocks across, a, b); writing to it writes the tensor.

    `tensor_RC` is contiguous and has the tensor's elements; a × b is the block's shape.
    """
    rows = tensor_RC.view(layout.rows, layout.columns)[stripe.rows]
    across = layout.columns // layout.block_columns
    return rows.view(-1, layout.block_rows, across, layout.block_columns).permute(0, 2, 1, 3)


def forward_transform(
    blocks_NAB: torch.Tensor, matrix_a: torch.Tensor, matrix_b: torch.Tensor
) -> torch.Tensor:
    """Return A · X · Bᵀ for each block: the coefficients of the two-dimensional transform."""
    count, a, b = blocks_NAB.shape
    result = blocks_NAB
    if b > 1:
        result = (result.reshape(count * a, b) @ matrix_b.T).view(count, a, b)
    if a > 1:
        result = torch.matmul(matrix_a, result)
    return result


def inverse_transform_rows(
    coefficients_RC: torch.Tensor, matrix_a: torch.Tensor, matrix_b: torch.Tensor
) -> torch.Tensor:
    """Return Aᵀ · C · B for each block of whole block rows, laid out as in the tensor; nothing is
    copied.

    With the orthonormal basis this inverts `forward_transform`. The result has the same layout and
    may share the argument's memory.
    """
    a, b = len(matrix_a), len(matrix_b)
    rows, columns = coefficients_RC.shape
    result = coefficients_RC
    if a > 1:
        bands = result.view(rows // a, a, columns)
        result = torch.bmm(matrix_a.T.expand(len(bands), a, a), bands)
    if b > 1:
        result = torch.mm(result.view(-1, b), matrix_b)
    return result.view(rows, columns)


@functools.cache
def float_basis(side: int, device: torch.device) -> torch.Tensor:
    """Return the orthonormal DCT-II matrix in float32."""
    return torch.from_numpy(orthonormal_basis(side)).to(torch.float32).to(device)


@functools.cache
def integer_basis_as_float(side: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return the protocol's integer basis, held in a floating-point type."""
    return torch.from_numpy(integer_basis(side).copy()).to(dtype).to(device)
