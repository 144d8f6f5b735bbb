"""What a check computes: a dealt sequence's gradient, seen at the coefficients that an update sent.

All members hold the same parameters, so whoever knows a round and a sample can compute the sample's
gradient as the member had to that was dealt it. Here it becomes the coefficients which that gradient
alone would have put into a momentum; the update, when it is there, says which of them matter. How well
its signs agree with them, and what follows, is `protocol/checks`. A checker uses its own second moment:
it differs from the checked member's, as rounding does between devices, and neither has to be the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ...protocol.checks.agreement import Agreement, agreement, whole_weights
from ...protocol.codec.update import DecodedUpdate, UpdateLayout
from ...protocol.wire.manifest import OptimizerSpec
from .optimizer import LocalOptimizer, root_of, transformed

Coefficients = list[torch.Tensor]
"""Of each tensor of a layout: (blocks, elements)."""


@dataclass(frozen=True)
class Dealt:
    """A sample that was dealt to somebody else in a round."""

    sample: int
    share: int
    """How many samples were dealt to them."""


def changes(
    dealt: Sequence[Iterable[torch.Tensor | None]],
    own: Iterable[torch.Tensor | None],
    share: int,
    layout: UpdateLayout,
    spec: OptimizerSpec,
    optimizer: LocalOptimizer,
) -> Iterator[list[torch.Tensor]]:
    """What would change in the checker's coefficients if one of so many sequences were a dealt one:
    (blocks, elements) for each of the dealt, of one tensor after the other.

    Each of `dealt` is such a sequence's mean gradient, or that of its beginning, on the parameters which
    the update is made from; `own` that of the checker's own share on the same, or of any sequences that
    were not dealt to the checked member; `share` is how many were, above 0. What all gradients of the
    round have in common is in both and goes. Nothing that others have said is in it, so nobody can make
    somebody else's score worse (docs/checks.md). `optimizer` is the checker's, and stays as it is; the
    gradients are left as they are.
    """
    for index, (ours, *theirs) in enumerate(zip(own, *dealt, strict=True)):
        before = coefficients(index, ours, layout, spec, optimizer)
        found = []
        for each in theirs:
            mixed = None if each is None or ours is None else ours + (each - ours) / share
            found.append(coefficients(index, mixed, layout, spec, optimizer).sub_(before))
        yield found


def look(update: DecodedUpdate, seen: Iterable[torch.Tensor]) -> Agreement:
    """How well an update agrees with what a dealt sequence changes."""
    return compared(update, at_positions(update, seen))


def compared(update: DecodedUpdate, values: Sequence[npt.NDArray[np.float32]]) -> Agreement:
    """How well the signs of an update agree with the values seen at its positions."""
    signs, seen = (
        np.concatenate([part.reshape(-1) for part in parts]) for parts in (update.signs, values)
    )
    return agreement(signs.astype(np.int8), whole_weights(seen.astype(np.float32)))


@torch.no_grad()
def coefficients(
    index: int,
    gradient: torch.Tensor | None,
    layout: UpdateLayout,
    spec: OptimizerSpec,
    optimizer: LocalOptimizer,
) -> torch.Tensor:
    """What the gradient of a layout's tensor would put into the checker's momentum: (blocks, elements).

    It is divided by the root that the checker's second moment would have if it came next. So an element
    that the checker has never seen moved has a bounded say. A missing gradient, or one that is not
    finite there, counts as zero.
    """
    tensor = layout.tensors[index]
    if gradient is None:
        return torch.zeros(tensor.blocks, tensor.elements)
    divided = preconditioned(index, gradient, spec, optimizer)
    parts = [part for _, part in transformed(divided, tensor, spec)]
    return torch.nan_to_num(torch.cat(parts), nan=0.0, posinf=0.0, neginf=0.0)


def at_positions(
    update: DecodedUpdate, seen: Iterable[torch.Tensor]
) -> list[npt.NDArray[np.float32]]:
    """The coefficients of which an update speaks, as its signs: (blocks, k) for each tensor."""
    found = []
    for table, positions_BK in zip(seen, update.positions, strict=True):
        places = torch.from_numpy(positions_BK.astype(np.int64)).to(table.device)
        found.append(table.gather(1, places).float().cpu().numpy())
    return found


def preconditioned(
    index: int, gradient: torch.Tensor, spec: OptimizerSpec, optimizer: LocalOptimizer
) -> torch.Tensor:
    """A parameter's gradient, smoothed and divided as if it came next; a contiguous copy."""
    gradient = gradient.contiguous()
    if optimizer.smoothed:
        gradient = (spec.smoothing * optimizer.smoothed[index].whole()).add_(gradient)
    if not optimizer.squares:
        return gradient.clone()
    beta = spec.second_moment
    second = (beta * optimizer.squares[index].whole()).addcmul_(gradient, gradient, value=1 - beta)
    return gradient / root_of(second, beta, optimizer.steps + 1)
