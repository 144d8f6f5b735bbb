"""What a check computes: a dealt sequence's gradient, seen at the coefficients that an update sent.

All members hold the same parameters, so whoever knows a round and a sample can compute the sample's
gradient as the member had to that was dealt it. Here it becomes the coefficients which that gradient
alone would have put into a momentum, at the places where the update speaks. How well the update's signs
agree with them, and what follows, is `protocol/checks`. A checker uses its own second moment: it
differs from the checked member's, as rounding does between devices, and neither has to be the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from ...protocol.checks.agreement import Agreement, agreement, all_signs, whole_weights
from ...protocol.codec.update import DecodedUpdate, UpdateLayout
from ...protocol.wire.manifest import OptimizerSpec
from .optimizer import LocalOptimizer, root_of, transformed


@torch.no_grad()
def look(
    update: DecodedUpdate,
    dealt: Sequence[torch.Tensor | None],
    own: Sequence[torch.Tensor | None],
    share: int,
    layout: UpdateLayout,
    spec: OptimizerSpec,
    optimizer: LocalOptimizer,
) -> Agreement:
    """How well an update agrees with what one of the sequences of its share says.

    `dealt` is that sequence's mean gradient, on the parameters which the update was made from; `own`
    that of the checker's own share on the same, or of any sequences that were not dealt to the checked
    member; `share` is how many were, above 0. The weights are what would change in the checker's
    coefficients if one of as many sequences were replaced by the dealt one: what all gradients of the
    round have in common is in both and goes. Nothing that others have said is in it, so nobody can
    make somebody else's score worse (docs/checks.md). `optimizer` is the checker's, and stays as it is.
    """
    mixed = [
        None if theirs is None or ours is None else ours + (theirs - ours) / share
        for theirs, ours in zip(dealt, own, strict=True)
    ]
    before = coefficients_at(update, own, layout, spec, optimizer)
    after = coefficients_at(update, mixed, layout, spec, optimizer)
    return agreement(all_signs(update), whole_weights(after - before))


@torch.no_grad()
def coefficients_at(
    update: DecodedUpdate,
    gradients: Sequence[torch.Tensor | None],
    layout: UpdateLayout,
    spec: OptimizerSpec,
    optimizer: LocalOptimizer,
) -> npt.NDArray[np.float32]:
    """What these gradients put at the coefficients that an update sent, in layout order: (N,).

    `optimizer` is the checker's, and stays as it is: the gradients are divided by the root that its
    second moment would have if they came next. So an element that the checker has never seen moved has
    a bounded say. A missing gradient, or one that is not finite there, counts as zero. The
    gradients are left as they are.
    """
    parts = []
    for index, (tensor, positions_BK) in enumerate(
        zip(layout.tensors, update.positions, strict=True)
    ):
        gradient = gradients[index]
        found = torch.zeros(positions_BK.shape)
        if gradient is not None:
            places = torch.from_numpy(positions_BK.astype(np.int64)).to(gradient.device)
            divided = preconditioned(index, gradient, spec, optimizer)
            for stripe, coefficients in transformed(divided, tensor, spec):
                found[stripe.blocks] = coefficients.gather(1, places[stripe.blocks]).cpu()
        parts.append(found.view(-1).numpy())
    return np.nan_to_num(np.concatenate(parts), nan=0.0, posinf=0.0, neginf=0.0)


def preconditioned(
    index: int, gradient: torch.Tensor, spec: OptimizerSpec, optimizer: LocalOptimizer
) -> torch.Tensor:
    """One parameter's gradient as it would be divided if it came next; a contiguous copy."""
    gradient = gradient.contiguous()
    if not optimizer.second_moment:
        return gradient.clone()
    beta = spec.second_moment
    second = (beta * optimizer.second_moment[index]).addcmul_(gradient, gradient, value=1 - beta)
    return gradient / root_of(second, beta, optimizer.steps + 1)
