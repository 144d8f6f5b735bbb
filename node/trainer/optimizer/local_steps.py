"""A member's own steps between two shared ones: the inner optimizer, and what its steps moved.

With `rounds.local_steps` above 1 a member takes several steps of its own on its share of a round. What
they moved takes the gradient's place (DiLoCo, Douillard et al., arXiv 2311.08105), and the shared
parameters are restored bit for bit from a copy.

The inner optimizer is Muon by blocks, which learned better than AdamW (docs/research.md): it needs one
number per parameter, and each rank can step its own bands. Its momentum begins at zero in every round,
so an update follows from the shared parameters and the samples alone, whatever was lost in a restart.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ....protocol.codec.update import UpdateLayout
from ...training.memory_options import IN_FLOAT32, StateOptions
from ..memory.optimizer_state import Noise, new_state
from .blocks import block_view, stripes
from .orthogonal import MUON, iteration_type, orthogonalise

_MOMENTUM = 0.95
_EPSILON = 1e-12


class LocalSteps:
    """The inner optimizer of the parameters of a layout, and the copy that restores them.

    Call `begin`, `step` for each mini-batch, `displacement`, and `restore`, in this order; `restore` may
    come at any time after `begin`.
    """

    def __init__(
        self,
        layout: UpdateLayout,
        parameters: Sequence[torch.Tensor],
        options: StateOptions = IN_FLOAT32,
    ) -> None:
        """`parameters`: float32, in the layout's order, of any strides; steps change them in place.
        `options`: the precision of the momentum, and the place of the momentum and of the copy."""
        self._layout = layout
        self._parameters = parameters
        noise = {parameter.device: Noise(parameter.device) for parameter in parameters}
        self.momentum = [
            new_state(
                parameter.shape,
                tensor.rows,
                parameter.device,
                options,
                noise[parameter.device],
                signed=True,
            )
            for tensor, parameter in zip(layout.tensors, parameters, strict=True)
        ]
        """The inner momentum, in the parameters' shapes."""
        self.start = [_copy_of(parameter, options) for parameter in parameters]
        """The parameters at the last `begin`."""

    @torch.no_grad()
    def begin(self, *, keep_momentum: bool = False) -> None:
        """Copy the parameters, and reset the momentum; `keep_momentum` is for experiments."""
        for kept, parameter in zip(self.start, self._parameters, strict=True):
            kept.copy_(parameter)
        if not keep_momentum:
            self.forget()

    @torch.no_grad()
    def forget(self) -> None:
        """Reset the momentum."""
        for tensor, state in zip(self._layout.tensors, self.momentum, strict=True):
            for stripe in stripes(tensor, state.device):
                rows = state.read(stripe.rows)
                # Written over, not multiplied: a number that is not finite would stay.
                state.write(stripe.rows, rows.zero_())

    @torch.no_grad()
    def step(self, gradients: Sequence[torch.Tensor | None], rate: float) -> None:
        """Move the parameters against the directions of these gradients, `rate` in root mean square. A
        missing gradient counts as zero. The gradients are overwritten."""
        for index, parameter in enumerate(self._parameters):
            direction = self._direction(index, gradients[index])
            parameter.detach().sub_(direction.view(parameter.shape), alpha=rate)

    @torch.no_grad()
    def displacement(
        self, gradients: Sequence[torch.Tensor | None], scale: float
    ) -> list[torch.Tensor]:
        """Return (start - parameters) / scale, in the memory of these gradients where there is some."""
        moved = []
        for start, parameter, gradient in zip(self.start, self._parameters, gradients, strict=True):
            usable = gradient is not None and gradient.dtype == torch.float32
            target = gradient if usable else torch.empty_like(parameter)
            assert target is not None
            target = target.view(parameter.shape).copy_(start)
            moved.append(target.sub_(parameter).div_(scale))
        return moved

    @torch.no_grad()
    def single(self, gradients: Sequence[torch.Tensor | None], scale: float) -> list[torch.Tensor]:
        """Return what one step at the rate 1 would move, divided by `scale`, without moving anything or
        needing `begin`. The gradients are overwritten."""
        self.forget()
        return [self._direction(i, gradient).div_(scale) for i, gradient in enumerate(gradients)]

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the parameters at the last `begin`, to the bit."""
        for kept, parameter in zip(self.start, self._parameters, strict=True):
            parameter.detach().copy_(kept)

    def _direction(self, index: int, gradient: torch.Tensor | None) -> torch.Tensor:
        """Return the direction of a tensor's step, (rows, columns): of a matrix each block nearly
        orthogonal, of a vector the momentum over its root mean square; both about 1 in root mean square,
        with Nesterov's look-ahead."""
        tensor, state = self._layout.tensors[index], self.momentum[index]
        if gradient is None:
            gradient = torch.zeros(tensor.rows, tensor.columns, device=state.device)
        gradient = gradient.to(torch.float32).contiguous().view(tensor.rows, tensor.columns)
        dtype = iteration_type(state.device)
        for stripe in stripes(tensor, state.device):
            rows = gradient[stripe.rows]
            momentum = state.read(stripe.rows).mul_(_MOMENTUM).add_(rows)
            rows.add_(momentum, alpha=_MOMENTUM)
            state.write(stripe.rows, momentum)
            blocks = block_view(gradient, tensor, stripe)
            if tensor.sides == 2:
                flat = blocks.reshape(stripe.count, tensor.block_rows, tensor.block_columns)
                blocks.copy_(orthogonalise(flat, MUON, dtype).view(blocks.shape))
            else:
                size = rows.square().mean().sqrt_().add_(_EPSILON)
                rows.div_(size)
        return gradient


def _copy_of(parameter: torch.Tensor, options: StateOptions) -> torch.Tensor:
    """Return memory for a copy of a parameter, where its optimizer's state is kept."""
    if options.place == "device" or parameter.device.type == "cpu":
        return torch.empty_like(parameter, requires_grad=False)
    pinned = parameter.device.type == "cuda"
    return torch.empty(parameter.shape, dtype=parameter.dtype, pin_memory=pinned)
