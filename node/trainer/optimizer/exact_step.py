"""The exact step: the change of the parameters by a round's updates, the same bits on every device.

1. Signs are added up per coefficient, each as often as its update counts. The sums are integers,
   bounded by the sum of all update weights.
2. The inverse transform uses the protocol's integer basis. All products and partial sums are
   integers; while they are below 2^24 (float32) or 2^53 (float64) every one of them is exact, so
   neither the order of summation nor a fused multiply-add can change the result.
3. A sign step uses the sign of the result. `p ← p · (1 - lr·wd)` and `p ← p - lr · sign` each round
   once: the factor is one float32 that all members compute in rational arithmetic, and lr · sign is
   exact, so fusing the second operation's product and difference would not change it either.
4. In matrices a scaled step uses the result itself, as the nearest float32 (exact below 2^24),
   times one float32 per matrix, computed in rational arithmetic (`scaling`) from an integer: the sum,
   over all coefficients, of the squared sums of signs. The product and the difference each round once,
   in two calls that nothing fuses; the product is clipped at twice the learning rate, which is exact.

Only multiplications and a subtraction of float32 numbers are left to IEEE 754. Subnormal numbers,
which some devices flush to zero, do not arise: initial parameters have none
(`models/initial_parameters`), no step is smaller than 2^-100, and the difference of a parameter and a
step of that size is zero or far above 2^-126.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction

import numpy as np
import torch

from ....protocol.codec.basis import exact_in_float32
from ....protocol.codec.scaling import MAX_MOVE, step_factor
from ....protocol.codec.schedule import nearest_float32
from ....protocol.codec.update import DecodedUpdate, TensorLayout, UpdateLayout
from ....protocol.wire.manifest import Step
from ...training.memory_options import CPU_KEPT_SUMS, GPU_KEPT_SUMS
from ..device import copies_while_computing
from .blocks import Stripe, integer_basis_as_float, inverse_transform_rows, stripes

Basis = Callable[[int, torch.dtype, torch.device], torch.Tensor]
"""Side, float type, device → the matrix of the transform: row = frequency, column = position."""
Means = Callable[[Sequence[int]], Sequence[Fraction]]
"""Sums over this process's blocks, one per tensor → the means over all blocks of the whole tensors."""

# A stripe and the sums of signs at its coefficients, each block's at the block's place in the tensor:
# (rows, columns), integers in float32.
_StripeSums = tuple[Stripe, torch.Tensor]
# The index of a tensor, its sums, and the factor of a scaled step, or None for a sign step.
_TensorStep = tuple[int, Iterable[_StripeSums], float | None]


@torch.no_grad()
def apply_step(
    parameters: Sequence[torch.Tensor],
    layout: UpdateLayout,
    updates: Sequence[DecodedUpdate],
    learning_rate: float,
    weight_decay: float,
    update_weights: Sequence[int] | None = None,
    *,
    step: Step = "sign",
    means: Means | None = None,
    basis: Basis = integer_basis_as_float,
) -> None:
    """Take one step with these updates, in any order; without updates nothing changes.

    `update_weights` are from 1 to 127, by default 1; an update of weight 2 has the effect of two
    identical updates. `parameters` are float32 tensors in layout order, of any strides;
    `learning_rate` is exactly a float32. `means` is needed only for a scaled step on parts of tensors.
    A `basis` other than the protocol's is for experiments: the result may then differ between devices.
    """
    if not updates:
        return
    update_weights = [1] * len(updates) if update_weights is None else update_weights
    decay = nearest_float32(1 - Fraction(learning_rate) * Fraction(weight_decay))
    device = parameters[0].device if parameters else torch.device("cpu")
    weighted = _WeightedSigns(updates, update_weights, layout, device)
    steps = weighted.sign_steps() if step == "sign" else weighted.scaled_steps(learning_rate, means)
    for index, sums, factor in steps:
        parameter, tensor = parameters[index], layout.tensors[index]
        in_float32 = exact_in_float32(
            sum(update_weights), tensor.top_k, tensor.block_rows, tensor.block_columns
        )
        target = parameter.detach()
        dense = target.contiguous()
        for stripe, sign_sums in sums:
            rows = dense.view(tensor.rows, tensor.columns)[stripe.rows]
            direction = inverse_sums(sign_sums, tensor, in_float32=in_float32, basis=basis)
            if decay != 1.0:
                rows.mul_(decay)
            if factor is None:
                rows.sub_(direction.sign_(), alpha=learning_rate)
            else:
                max_move = MAX_MOVE * learning_rate
                rows.sub_(direction.mul_(factor).clamp_(-max_move, max_move))
        if not target.is_contiguous():
            target.copy_(dense)


def inverse_sums(
    sign_sums_RC: torch.Tensor,
    tensor: TensorLayout,
    *,
    in_float32: bool,
    basis: Basis = integer_basis_as_float,
) -> torch.Tensor:
    """Return the integer inverse transform of some block rows, each number as the nearest float32.

    `sign_sums_RC`: integers in float32, each block's at the block's place in the tensor; it is
    overwritten. `in_float32`: float32 holds all partial sums exactly; otherwise float64 is used, on the
    CPU if the device has none (MPS).
    """
    device = sign_sums_RC.device
    capable = torch.device("cpu") if not in_float32 and device.type == "mps" else device
    dtype = torch.float32 if in_float32 else torch.float64
    matrix_a = basis(tensor.block_rows, dtype, capable)
    matrix_b = basis(tensor.block_columns, dtype, capable)
    sums = inverse_transform_rows(sign_sums_RC.to(capable).to(dtype), matrix_a, matrix_b)
    return sums.to(torch.float32).to(device)


class _WeightedSigns:
    """The signs of all updates on the device, each times its update's weight (here: a vote)."""

    def __init__(
        self,
        updates: Sequence[DecodedUpdate],
        update_weights: Sequence[int],
        layout: UpdateLayout,
        device: torch.device,
    ) -> None:
        self._layout = layout
        self._positions_UC, self._signs_UC = weighted_signs(updates, update_weights, layout, device)

    def sign_steps(self) -> Iterator[_TensorStep]:
        """Yield the sums for a sign step, tensor by tensor."""
        for index in range(len(self._layout.tensors)):
            yield index, self._sums(index), None

    def scaled_steps(self, learning_rate: float, means: Means | None) -> Iterator[_TensorStep]:
        """Yield the sums for a scaled step, tensor by tensor, each with its factor (None for vectors).

        A tensor's factor depends on all of its sums. So tensors are processed in groups, whose sums are
        kept until their factors are known: the host waits for the GPU once per group, and only sums
        beyond the limit are computed a second time. With `means`, which must be called just once, all
        tensors are one group.
        """
        tensors, on_cpu = self._layout.tensors, self._signs_UC.device.type == "cpu"
        limit = CPU_KEPT_SUMS if on_cpu else GPU_KEPT_SUMS
        groups = _groups(tensors, limit) if means is None else [range(len(tensors))]
        for group in groups:
            squares, kept = self._squares(group, limit)
            each = (
                local_means([tensors[index] for index in group], squares)
                if means is None
                # Called even if no tensor needs it: with several ranks it is a collective, in which
                # the other ranks wait.
                else means(squares)
            )
            for index, mean in zip(group, each, strict=True):
                factor = step_factor(learning_rate, mean) if scalable(tensors[index]) else None
                yield index, kept.pop(index, None) or self._sums(index), factor

    def _sums(self, index: int) -> Iterator[_StripeSums]:
        for stripe, sign_sums, _, _ in self._stripe_sums(index):
            yield stripe, sign_sums

    def _squares(
        self, group: Sequence[int], limit: int
    ) -> tuple[list[int], dict[int, list[_StripeSums]]]:
        """Return, for each tensor in the group, the sum of the squares of its sums (0 for vectors), and
        by index the sums themselves, of matrices with at most `limit` elements in total."""
        totals = torch.zeros(len(group), dtype=torch.int64, device=self._signs_UC.device)
        kept: dict[int, list[_StripeSums]] = {}
        for place, index in enumerate(group):
            tensor = self._layout.tensors[index]
            if not scalable(tensor):
                continue
            keep = tensor.blocks * tensor.elements <= limit
            if keep:
                limit -= tensor.blocks * tensor.elements
                kept[index] = []
            for stripe, sign_sums, places, weights in self._stripe_sums(index):
                # The votes of a coefficient, each times their sum, add up to the square of the sum.
                # So only coefficients with votes are visited. 64-bit integers, exact in any order.
                sums = sign_sums.view(-1).index_select(0, places).to(torch.int64)
                totals[place] += (sums * weights.to(torch.int64)).sum()
                if keep:
                    kept[index].append((stripe, sign_sums))
        # Read once at the end, so that the host does not wait for the GPU in between.
        return totals.tolist(), kept

    def _stripe_sums(
        self, index: int
    ) -> Iterator[tuple[Stripe, torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Yield, stripe by stripe, the sums, and all votes with their offsets in the stripe."""
        tensor = self._layout.tensors[index]
        done = sum(each.coefficients for each in self._layout.tensors[:index])
        own = slice(done, done + tensor.coefficients)
        offsets = _offsets(self._positions_UC[:, own], tensor)
        weights = self._signs_UC[:, own].to(torch.float32).view(offsets.shape)
        for stripe in stripes(tensor, offsets.device):
            rows = stripe.rows.stop - stripe.rows.start
            sign_sums = torch.zeros(rows, tensor.columns, device=offsets.device)
            places = (offsets[:, stripe.blocks] - stripe.rows.start * tensor.columns).view(-1)
            here = weights[:, stripe.blocks].reshape(-1)
            # Integers of at most the sum of the update weights: float32 adds them exactly in any order.
            sign_sums.view(-1).index_add_(0, places, here)
            yield stripe, sign_sums, places, here


def scalable(tensor: TensorLayout) -> bool:
    """Whether a scaled step uses the result's values, and not only its signs, for this tensor: for
    matrices. A vector is often the weight of a normalisation, each element of which scales a whole
    channel, so no element of it should move further than the learning rate; and scaled steps for
    vectors learned no better (docs/research.md)."""
    return tensor.sides == 2


def local_means(tensors: Sequence[TensorLayout], sums: Sequence[int]) -> list[Fraction]:
    """Compute `Means` for tensors whose blocks are all in this process."""
    return [Fraction(total, tensor.blocks) for total, tensor in zip(sums, tensors, strict=True)]


def _groups(tensors: Sequence[TensorLayout], limit: int) -> Iterator[range]:
    """Cut the tensors into consecutive groups, whose matrices have at most `limit` elements in total;
    a larger matrix is a group by itself."""
    start, size = 0, 0
    for index, tensor in enumerate(tensors):
        own = tensor.blocks * tensor.elements if scalable(tensor) else 0
        if size and size + own > limit:
            yield range(start, index)
            start, size = index, 0
        size += own
    yield range(start, len(tensors))


def weighted_signs(
    updates: Sequence[DecodedUpdate],
    update_weights: Sequence[int],
    layout: UpdateLayout,
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all updates' positions (int16) and signs times weights (int8), each (members,
    coefficients), on the device.

    They are copied there together and in their smallest form, three bytes per coefficient. For a GPU
    the source is pinned memory, from which it copies asynchronously.
    """
    shape = (len(updates), layout.coefficients)
    pinned = copies_while_computing(device)
    buffers = (
        torch.empty(shape, dtype=torch.int16, pin_memory=pinned),
        torch.empty(shape, dtype=torch.int8, pin_memory=pinned),
    )
    positions, signs = (each.numpy() for each in buffers)
    members = enumerate(zip(updates, update_weights, strict=True)) if layout.tensors else ()
    for member, (update, weight) in members:
        flat = [positions_BK.reshape(-1) for positions_BK in update.positions]
        np.concatenate(flat, out=positions[member], casting="same_kind")
        np.concatenate([sign.reshape(-1) for sign in update.signs], out=signs[member])
        signs[member] *= np.int8(weight)
    positions_UC, signs_UC = (each.to(device, non_blocking=pinned) for each in buffers)
    return positions_UC, signs_UC


def _offsets(positions_UC: torch.Tensor, tensor: TensorLayout) -> torch.Tensor:
    """Return the offset in the flattened tensor of the element at each coefficient's place: (members,
    blocks, k)."""
    # 64-bit integers only where needed: they are slow on a GPU, and take twice the memory.
    number = torch.int32 if tensor.blocks * tensor.elements < 1 << 31 else torch.int64
    offsets = positions_UC.to(number).view(-1, tensor.blocks, tensor.top_k)
    # One row down is block_columns positions further in a block, but a whole row further in the tensor.
    offsets += (offsets // tensor.block_columns) * (tensor.columns - tensor.block_columns)
    across = tensor.columns // tensor.block_columns
    block = torch.arange(tensor.blocks, dtype=number, device=offsets.device)
    corners = (block // across) * (tensor.block_rows * tensor.columns)
    offsets += (corners + (block % across) * tensor.block_columns)[:, None]
    return offsets
