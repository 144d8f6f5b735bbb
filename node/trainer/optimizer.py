"""What a member keeps to itself: momentum, second moment, and what it has sent but not seen counted.

The DisTrO/DeMo update (Peng et al., arXiv 2411.19870): gradients gather in a momentum; the
strongest coefficients of its blockwise cosine transform are sent and subtracted; what is weak stays
until it has grown. Dividing gradients by the root of a local second moment first is a free choice
of each member, since no optimizer state is ever shared, and lowers the loss at the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ...protocol.manifest import OptimizerSpec
from ...protocol.update import UpdateLayout
from .blocks import block_view, float_basis, forward_transform, inverse_transform, stripes

# Against division by zero where a parameter has had no gradient yet. Far below any real root mean
# square gradient, so it does not choose the step of any parameter.
_EPSILON = 1e-12

# Rounds that may be open at once; overlapping rounds need two.
_MAX_PENDING = 8


@dataclass(frozen=True)
class Taken:
    """What one round takes out of a momentum: per tensor of the layout arrays of (blocks, k)."""

    positions: list[npt.NDArray[np.int32]]
    """Positions in the block, ascending."""
    values: list[npt.NDArray[np.float32]]
    """The coefficients there. They stay at home: only their signs are sent."""
    signs: list[npt.NDArray[np.int8]]
    """+1 or -1: what is sent where a value is 0 depends on the round."""


class LocalOptimizer:
    """Momentum and second moment for the parameters of a layout.

    Deterministic: the same gradients in the same order give the same updates on one device.
    """

    def __init__(
        self, layout: UpdateLayout, parameters: Sequence[torch.Tensor], spec: OptimizerSpec
    ) -> None:
        self._layout = layout
        self._spec = spec
        self.momentum = [torch.zeros_like(p, requires_grad=False) for p in parameters]
        self.second_moment = (
            [torch.zeros_like(p, requires_grad=False) for p in parameters]
            if spec.preconditioner == "rms"
            else []
        )
        self.steps = 0
        """Gradients in the second moment, for its bias correction."""
        self._pending: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    @torch.no_grad()
    def accumulate(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """m ← β·m + g, with g ← g / (sqrt(v / (1 - β₂ᵗ)) + ε) before where the manifest says so.

        A missing gradient counts as zero. The gradients are used up: their memory is worked in.
        """
        self.steps += 1
        for index, gradient in enumerate(gradients):
            momentum = self.momentum[index].mul_(self._spec.momentum)
            if gradient is None:
                continue
            if self.second_moment:
                beta = self._spec.second_moment
                second = self.second_moment[index].mul_(beta)
                second.addcmul_(gradient, gradient, value=1 - beta)
                root = (second / (1 - beta**self.steps)).sqrt_().add_(_EPSILON)
                gradient = gradient.div_(root)
            momentum.add_(gradient)

    @torch.no_grad()
    def decay(self) -> None:
        """A round without samples: the momentum fades as with a gradient of zero."""
        for momentum in self.momentum:
            momentum.mul_(self._spec.momentum)

    @torch.no_grad()
    def take(self, round_number: int) -> Taken:
        """Take the strongest coefficients out of the momentum.

        They stay pending until `forget` or `refund`. A second call for a round gives the first one's
        coefficients back beforehand.
        """
        self.refund(round_number)
        while len(self._pending) >= _MAX_PENDING:
            self.refund(min(self._pending))
        sent = [self._take_tensor(index) for index in range(len(self._layout.tensors))]
        self._pending[round_number] = sent
        # A block without any momentum (rows of tokens never seen) must send something too. Its sign
        # alternates with the rounds, so that what it does to the parameters is undone next round.
        at_zero = 1 if round_number % 2 == 0 else -1
        values = [amounts.numpy() for _, amounts in sent]
        return Taken(
            positions=[places.to(torch.int32).numpy() for places, _ in sent],
            values=values,
            signs=[np.where(v == 0, at_zero, np.sign(v)).astype(np.int8) for v in values],
        )

    @torch.no_grad()
    def refund(self, round_number: int) -> bool:
        """Add what was sent in a round back into the momentum; False if nothing is pending.

        The coefficients pass through two float transforms, so a momentum comes back within
        rounding: about 1e-6 of its largest element.
        """
        sent = self._pending.pop(round_number, None)
        if sent is None:
            return False
        for index, (positions, values) in enumerate(sent):
            self._add(index, positions, values)
        return True

    def forget(self, round_number: int) -> bool:
        """The update of a round was counted: it need not come back. False if none is pending."""
        return self._pending.pop(round_number, None) is not None

    def forget_all(self) -> None:
        """Drop everything pending."""
        self._pending.clear()

    def _take_tensor(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions (int16) and values (float32) of one tensor, both (blocks, k), on the CPU."""
        tensor, momentum = self._layout.tensors[index], self.momentum[index]
        matrix_a = float_basis(tensor.block_rows, momentum.device)
        matrix_b = float_basis(tensor.block_columns, momentum.device)
        all_positions, all_values = [], []
        for stripe in stripes(tensor, momentum.device):
            view = block_view(momentum, tensor, stripe)
            shape = (stripe.count, tensor.block_rows, tensor.block_columns)
            coefficients = forward_transform(view.reshape(shape), matrix_a, matrix_b)
            flat = coefficients.reshape(stripe.count, tensor.elements)
            positions = flat.abs().topk(tensor.top_k, dim=1, sorted=False).indices
            positions = positions.sort(dim=1).values
            values = flat.gather(1, positions)
            sent = torch.zeros_like(flat).scatter_(1, positions, values).view(shape)
            view.sub_(inverse_transform(sent, matrix_a, matrix_b).view(view.shape))
            all_positions.append(positions.to(torch.int16).cpu())
            all_values.append(values.cpu())
        return torch.cat(all_positions), torch.cat(all_values)

    def _add(self, index: int, positions: torch.Tensor, values: torch.Tensor) -> None:
        tensor, momentum = self._layout.tensors[index], self.momentum[index]
        matrix_a = float_basis(tensor.block_rows, momentum.device)
        matrix_b = float_basis(tensor.block_columns, momentum.device)
        for stripe in stripes(tensor, momentum.device):
            places = positions[stripe.blocks].to(momentum.device).to(torch.int64)
            amounts = values[stripe.blocks].to(momentum.device)
            sent = torch.zeros((stripe.count, tensor.elements), device=momentum.device)
            sent.scatter_(1, places, amounts)
            shape = (stripe.count, tensor.block_rows, tensor.block_columns)
            view = block_view(momentum, tensor, stripe)
            view.add_(inverse_transform(sent.view(shape), matrix_a, matrix_b).view(view.shape))
