"""The computation of an audit: the gradient of an assigned sample at the coefficients of an update.

All members hold the same parameters, so any of them can compute the gradient that another member had
to compute for a sample of its share. This module transforms that gradient into the change of
coefficients that it would cause in a momentum, and selects the coefficients whose positions the update
contains. `protocol/audit` scores how well the update's signs agree with them, and draws the
conclusions.

An auditor uses its own second moment, which differs from the audited member's, and rounding differs
between devices. The score tolerates both, because it sums agreements of signs over many coefficients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ...protocol.audit.sign_score import SignSums, integer_weights, sign_sums
from ...protocol.codec.update import DecodedUpdate, UpdateLayout
from ...protocol.wire.manifest import OptimizerSpec
from .optimizer.optimizer import LocalOptimizer, rms_divisor, transformed_stripes

Coefficients = list[torch.Tensor]
"""One tensor (blocks, elements) for each tensor of a layout."""


@dataclass(frozen=True)
class AssignedSample:
    """A sample that was assigned to another member in a round."""

    sample: int
    share: int
    """Number of samples that were assigned to that member."""


def coefficient_changes(
    audited: Sequence[Iterable[torch.Tensor | None]],
    own: Iterable[torch.Tensor | None],
    share: int,
    layout: UpdateLayout,
    spec: OptimizerSpec,
    optimizer: LocalOptimizer,
) -> Iterator[list[torch.Tensor]]:
    """Yield how the auditor's coefficients would change if, in a share of `share` samples with the
    mean gradient `own`, one sample were replaced by an audited one. Yields for each tensor of the
    layout a list of (blocks, elements), one for each entry of `audited`.

    Each entry of `audited` is the mean gradient of an audited sample, or of its beginning, on the
    parameters from which the update was made. `own` is the mean gradient of the auditor's own share
    on the same parameters, or of any samples that were not assigned to the audited member. `share` is
    the number of samples assigned to that member, above 0.

    What all gradients of a round have in common appears before and after the replacement, so it
    cancels. Nothing that other members sent enters the result, so no member can lower another's score
    (docs/audits.md). `optimizer` is the auditor's; neither it nor the gradients are changed.
    """
    for index, (ours, *theirs) in enumerate(zip(own, *audited, strict=True)):
        before = coefficients(index, ours, layout, spec, optimizer)
        found = []
        for each in theirs:
            mixed = None if each is None or ours is None else ours + (each - ours) / share
            found.append(coefficients(index, mixed, layout, spec, optimizer).sub_(before))
        yield found


def signs_agreement(update: DecodedUpdate, values: Sequence[npt.NDArray[np.float32]]) -> SignSums:
    """Return how well the signs of an update agree with the values at its positions."""
    signs, flat_values = (
        np.concatenate([part.reshape(-1) for part in parts]) for parts in (update.signs, values)
    )
    return sign_sums(signs.astype(np.int8), integer_weights(flat_values.astype(np.float32)))


@torch.no_grad()
def coefficients(
    index: int,
    gradient: torch.Tensor | None,
    layout: UpdateLayout,
    spec: OptimizerSpec,
    optimizer: LocalOptimizer,
) -> torch.Tensor:
    """Return what the gradient of tensor number `index` would add to the auditor's momentum: (blocks,
    elements).

    If the swarm's preconditioner divides by the root of the second moment, the gradient is divided by
    the root that the auditor's second moment would have after this gradient. So an element whose
    gradient was always zero at the auditor has a bounded influence. A missing gradient, or a value
    that is not finite, counts as zero.
    """
    tensor = layout.tensors[index]
    if gradient is None:
        return torch.zeros(tensor.blocks, tensor.elements)
    divided = preconditioned(index, gradient, spec, optimizer)
    parts = [part for _, part in transformed_stripes(divided, tensor, spec)]
    return torch.nan_to_num(torch.cat(parts), nan=0.0, posinf=0.0, neginf=0.0)


def at_positions(
    update: DecodedUpdate, changes: Iterable[torch.Tensor]
) -> list[npt.NDArray[np.float32]]:
    """Return the coefficients at the positions of an update, in the order of its signs: (blocks, k)
    per tensor."""
    found = []
    for table, positions_BK in zip(changes, update.positions, strict=True):
        places = torch.from_numpy(positions_BK.astype(np.int64)).to(table.device)
        found.append(table.gather(1, places).float().cpu().numpy())
    return found


def preconditioned(
    index: int, gradient: torch.Tensor, spec: OptimizerSpec, optimizer: LocalOptimizer
) -> torch.Tensor:
    """Return a contiguous copy of the gradient of parameter number `index`, smoothed and divided by the
    root of the second moment as if it were the optimizer's next gradient."""
    gradient = gradient.contiguous()
    if optimizer.smoothed:
        gradient = (spec.smoothing * optimizer.smoothed[index].read_all()).add_(gradient)
    if not optimizer.squares:
        return gradient.clone()
    beta = spec.second_moment
    second = (beta * optimizer.squares[index].read_all()).addcmul_(
        gradient, gradient, value=1 - beta
    )
    return gradient / rms_divisor(second, beta, optimizer.steps + 1)
