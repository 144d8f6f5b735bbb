"""A member's private optimizer state: momentum, second moment, and the coefficients that were sent but
not yet settled by a record.

The DisTrO/DeMo update (Peng et al., arXiv 2411.19870): gradients accumulate in a momentum. The signs of
the strongest coefficients of its blockwise cosine transform are sent, and these coefficients are
subtracted; weak ones stay until they have grown. Four additions lower the loss at the same bytes:
adding a decayed sum of earlier gradients to a gradient, dividing it by the root of a local second
moment, making its blocks nearly orthogonal, and damping the momentum at coefficients that others have
sent. The manifest sets them, but no member depends on another's choice, since no optimizer state is ever
shared. The momentum is kept transformed, so that sent coefficients are simply taken out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ....protocol.codec.update import DecodedUpdate, TensorLayout, UpdateLayout
from ....protocol.committee.sign_vote import Signs, selected_positions, zero_sign
from ....protocol.wire.manifest import OptimizerSpec
from ...training.memory_options import IN_FLOAT32, StateOptions
from ..memory.optimizer_state import Noise, StateTensor, new_state
from .blocks import Stripe, block_view, float_basis, forward_transform, stripes
from .orthogonal import MUON, PARTIAL, iteration_type, orthogonalise

# Prevents division by zero if a parameter has had no gradient yet. Far below any real root mean
# square gradient, so it does not determine any parameter's step.
_EPSILON = 1e-12

# How a preconditioner makes blocks nearly orthogonal.
_ITERATIONS = {"orthogonal": PARTIAL, "muon": MUON}

# Rounds that may be pending at once; overlapping rounds need two.
_MAX_PENDING = 8


@dataclass(frozen=True)
class Taken:
    """The coefficients that one round takes out of a momentum: each field has one array of (blocks, k)
    for each tensor of the layout."""

    positions: list[npt.NDArray[np.int32]]
    """Positions of the coefficients in their block, ascending."""
    values: list[npt.NDArray[np.float32]]
    """The coefficients there. They are not sent: only their signs are."""
    signs: list[npt.NDArray[np.int8]]
    """+1 or -1; if a value is 0, its sign depends on the round."""


class LocalOptimizer:
    """Momentum and second moment for the parameters of a layout.

    Deterministic: the same gradients in the same order give the same updates on one device.
    """

    def __init__(
        self,
        layout: UpdateLayout,
        parameters: Sequence[torch.Tensor],
        spec: OptimizerSpec,
        options: StateOptions = IN_FLOAT32,
    ) -> None:
        """`options`: the precision and place in which the state is kept; the choice is private."""
        self._layout = layout
        self._spec = spec
        devices = [parameter.device for parameter in parameters]
        self._noise = {device: Noise(device) for device in devices}
        self.coefficients = [
            new_state(
                (tensor.blocks, tensor.elements),
                tensor.blocks,
                device,
                options,
                self._noise[device],
                signed=True,
            )
            for tensor, device in zip(layout.tensors, devices, strict=True)
        ]
        """The momentum: its coefficients, a row for each block."""

        def shaped_as_parameters(*, signed: bool) -> list[StateTensor]:
            return [
                new_state(
                    parameter.shape,
                    tensor.rows,
                    parameter.device,
                    options,
                    self._noise[parameter.device],
                    signed=signed,
                )
                for tensor, parameter in zip(layout.tensors, parameters, strict=True)
            ]

        self.squares = shaped_as_parameters(signed=False) if spec.divides else []
        """The second moment, in the parameters' shapes."""
        self.smoothed = shaped_as_parameters(signed=True) if spec.smoothing else []
        """The smoothed gradient, in the parameters' shapes."""
        self.steps = 0
        """Number of gradients accumulated, for the second moment's bias correction."""
        self._pending: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    @property
    def momentum(self) -> list[torch.Tensor]:
        """The momentum's coefficients in float32, (blocks, elements) for each tensor."""
        return [state.read_all() for state in self.coefficients]

    @property
    def second_moment(self) -> list[torch.Tensor]:
        """The second moment in float32, in the parameters' shapes; empty if it is not used."""
        return [state.read_all() for state in self.squares]

    @property
    def by_rows(self) -> dict[str, list[StateTensor]]:
        """The states kept in the parameters' shapes, by name; those that the manifest does not use
        are left out."""
        kept = {"second_moment": self.squares, "smoothed": self.smoothed}
        return {name: states for name, states in kept.items() if states}

    @torch.no_grad()
    def accumulate(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Update the momentum: m ← β·m + DCT(g), with g smoothed and preconditioned as the manifest
        defines.

        Smoothing, if any: f ← s·f + g, g ← f. `rms`: g ← g / (sqrt(v / (1 - β₂ᵗ)) + ε).
        `orthogonal`: the same, and then every block of a matrix is replaced by the nearly orthogonal
        one with the same singular vectors. `muon`: only that replacement, with more iterations. A
        missing gradient counts as zero. The gradients are overwritten: they serve as work memory.
        """
        self.steps += 1
        for index, gradient in enumerate(gradients):
            self._accumulate_tensor(index, gradient)

    @torch.no_grad()
    def decay(self) -> None:
        """Decay the momentum and the smoothed gradient as with a gradient of zero, for a round
        without samples."""
        for index in range(len(self._layout.tensors)):
            self._accumulate_tensor(index, None)

    @torch.no_grad()
    def take(self, round_number: int) -> Taken:
        """Take the strongest coefficients out of the momentum.

        They stay pending until `forget` or `refund`. A second call for a round first refunds the
        coefficients of the first call.
        """
        self.refund(round_number)
        while len(self._pending) >= _MAX_PENDING:
            self.refund(min(self._pending))
        sent = _to_main_memory([self._take_tensor(i) for i in range(len(self._layout.tensors))])
        self._pending[round_number] = sent
        values = [amounts.numpy() for _, amounts in sent]
        return Taken(
            positions=[positions.to(torch.int32).numpy() for positions, _ in sent],
            values=values,
            signs=[_signs(amounts, round_number) for amounts in values],
        )

    @torch.no_grad()
    def vote_signs(self, rotation_steps: int, step: int) -> list[Signs]:
        """Return the signs of the coefficients that are due at this step (`committee.sign_vote`). They
        are read from the momentum, which with committees contains only the last gradient; nothing is
        taken out. The sign sent for a zero changes from one cycle of `rotation_steps` to the next."""
        at_zero = zero_sign(rotation_steps, step)
        values: list[torch.Tensor] = []
        for tensor, state in zip(self._layout.tensors, self.coefficients, strict=True):
            selected = selected_positions(tensor.elements, rotation_steps, step)
            columns = torch.from_numpy(selected.astype(np.int64)).to(state.device)
            here = [
                state.read(stripe.blocks).index_select(1, columns)
                for stripe in stripes(tensor, state.device)
            ]
            values.append(torch.cat(here))
        # All are copied together after the last tensor, because every copy waits for the GPU.
        arrays = [each.numpy() for each in _copy_together(values)]
        return [np.where(each == 0, at_zero, np.sign(each)).astype(np.int8) for each in arrays]

    def sent(self, round_number: int, update: DecodedUpdate) -> bool:
        """Whether this update is the one that was taken in a round and is still pending."""
        pending = self._pending.get(round_number)
        return pending is not None and all(
            np.array_equal(own_positions.numpy(), positions)
            and np.array_equal(_signs(values.numpy(), round_number), signs)
            for (own_positions, values), positions, signs in zip(
                pending, update.positions, update.signs, strict=True
            )
        )

    @torch.no_grad()
    def refund(self, round_number: int) -> bool:
        """Add the coefficients sent in a round back into the momentum; return False if nothing is
        pending."""
        sent = self._pending.pop(round_number, None)
        if sent is None:
            return False
        for index, (positions, values) in enumerate(sent):
            state = self.coefficients[index]
            for stripe in stripes(self._layout.tensors[index], state.device):
                momentum = state.read(stripe.blocks)
                indices = positions[stripe.blocks].to(momentum.device).to(torch.int64)
                momentum.scatter_add_(1, indices, values[stripe.blocks].to(momentum.device))
                state.write(stripe.blocks, momentum)
        return True

    def forget(self, round_number: int) -> bool:
        """Drop the pending update of a round, because it was counted. Return False if none is
        pending."""
        return self._pending.pop(round_number, None) is not None

    @torch.no_grad()
    def damp(self, updates: Sequence[DecodedUpdate]) -> None:
        """Damp the momentum, m ← (1 - damping)·m, at every coefficient that one of these updates
        contains.

        Members' gradients are similar, and the step has just applied these coefficients, so sending
        them again would repeat it; a member's next coefficients then complement the others'.
        """
        if not updates or self._spec.damping == 0.0:
            return
        for index, tensor in enumerate(self._layout.tensors):
            state = self.coefficients[index]
            for stripe in stripes(tensor, state.device):
                momentum = state.read(stripe.blocks)
                sent_positions = [update.positions[index][stripe.blocks] for update in updates]
                indices = torch.from_numpy(np.concatenate(sent_positions, axis=1).astype(np.int16))
                indices = indices.to(momentum.device).to(torch.int64)
                # If several updates contain the same coefficient, the same value is written several
                # times, so it is damped once.
                damped = momentum.gather(1, indices).mul_(1 - self._spec.damping)
                momentum.scatter_(1, indices, damped)
                state.write(stripe.blocks, momentum)

    def forget_all(self) -> None:
        """Drop all pending updates."""
        self._pending.clear()

    @torch.no_grad()
    def start_over(self) -> None:
        """Reset all moments and pending updates, as if there had been no round before."""
        self._pending.clear()
        self.steps = 0
        by_rows = ((states, "rows") for states in self.by_rows.values())
        for states, rows_of in ((self.coefficients, "blocks"), *by_rows):
            for tensor, state in zip(self._layout.tensors, states, strict=True):
                for stripe in stripes(tensor, state.device):
                    rows: slice = getattr(stripe, rows_of)
                    state.write(rows, torch.zeros_like(state.read(rows)))

    def _accumulate_tensor(self, index: int, gradient: torch.Tensor | None) -> None:
        """Add a tensor's gradient to its momentum; without one, only decay the momentum."""
        tensor, state = self._layout.tensors[index], self.coefficients[index]
        if gradient is not None:
            # A convolution may return its kernel's gradient in another memory order, and a bfloat16
            # copy in 16 bits.
            gradient = gradient.to(torch.float32).contiguous().view(tensor.rows, tensor.columns)
        beta = self._spec.momentum
        for stripe in stripes(tensor, state.device):
            self._smooth(index, stripe, None if gradient is None else gradient[stripe.rows])
            momentum = state.read(stripe.blocks)
            if gradient is None:
                momentum.mul_(beta)
            else:
                self._precondition(index, stripe, gradient[stripe.rows])
                added = transformed_stripe(gradient, tensor, self._spec, stripe)
                torch.add(added, momentum, alpha=beta, out=momentum)
            state.write(stripe.blocks, momentum)

    def _smooth(self, index: int, stripe: Stripe, gradient: torch.Tensor | None) -> None:
        """Add the decayed sum of earlier gradients to some rows of a gradient; without a gradient,
        only decay the sum."""
        if not self.smoothed:
            return
        state, decay = self.smoothed[index], self._spec.smoothing
        before = state.read(stripe.rows)
        after = before.mul_(decay) if gradient is None else gradient.add_(before, alpha=decay)
        state.write(stripe.rows, after)

    def _precondition(self, index: int, stripe: Stripe, gradient: torch.Tensor) -> None:
        """Update the second moment of some rows of a gradient, then divide them by its root."""
        if not self.squares:
            return
        beta = self._spec.second_moment
        second = self.squares[index].read(stripe.rows).mul_(beta)
        second.addcmul_(gradient, gradient, value=1 - beta)
        self.squares[index].write(stripe.rows, second)
        gradient.div_(rms_divisor(second, beta, self.steps))

    def _take_tensor(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the positions (int16) and values (float32) taken from one tensor, both (blocks, k),
        on its device."""
        tensor = self._layout.tensors[index]
        all_positions, all_values = [], []
        state = self.coefficients[index]
        for stripe in stripes(tensor, state.device):
            momentum = state.read(stripe.blocks)
            positions = momentum.abs().topk(tensor.top_k, dim=1, sorted=False).indices
            positions = positions.sort(dim=1).values
            all_values.append(momentum.gather(1, positions))
            momentum.scatter_(1, positions, 0.0)
            state.write(stripe.blocks, momentum)
            all_positions.append(positions.to(torch.int16))
        return torch.cat(all_positions), torch.cat(all_values)


def _to_main_memory(
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return pairs of two-dimensional tensors in main memory. They are copied together per device and
    type, because every copy waits for the GPU."""
    moved: list[tuple[torch.Tensor, torch.Tensor]] = list(pairs)
    by_device: dict[torch.device, list[int]] = {}
    for index, (positions, _) in enumerate(pairs):
        if positions.device.type != "cpu":
            by_device.setdefault(positions.device, []).append(index)
    for indices in by_device.values():
        kinds = (_copy_together([pairs[index][kind] for index in indices]) for kind in (0, 1))
        for index, positions, values in zip(indices, *kinds, strict=True):
            # Cloned, so that each tensor's memory can be freed without the others'.
            moved[index] = positions.clone(), values.clone()
    return moved


def _copy_together(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors of one device and type in main memory, as views of one copy."""
    if not tensors:
        return []
    copied = torch.cat([each.reshape(-1) for each in tensors]).cpu()
    pieces = copied.split([each.numel() for each in tensors])
    return [piece.view(each.shape) for piece, each in zip(pieces, tensors, strict=True)]


def rms_divisor(second_moment: torch.Tensor, beta: float, steps: int) -> torch.Tensor:
    """Return the divisor of a gradient: sqrt(v / (1 - β₂ᵗ)) + ε, after t = `steps` steps."""
    return (second_moment / (1 - beta**steps)).sqrt_().add_(_EPSILON)


def transformed_stripes(
    gradient: torch.Tensor, tensor: TensorLayout, spec: OptimizerSpec
) -> Iterator[tuple[Stripe, torch.Tensor]]:
    """Yield `transformed_stripe` for each stripe of a gradient."""
    for stripe in stripes(tensor, gradient.device):
        yield stripe, transformed_stripe(gradient, tensor, spec, stripe)


def transformed_stripe(
    gradient: torch.Tensor, tensor: TensorLayout, spec: OptimizerSpec, stripe: Stripe
) -> torch.Tensor:
    """Return the coefficients of a stripe's blocks of a contiguous gradient: (blocks, elements), made
    nearly orthogonal if the manifest asks for it. `gradient` is already smoothed and divided by the
    root of the second moment."""
    matrix_a = float_basis(tensor.block_rows, gradient.device)
    matrix_b = float_basis(tensor.block_columns, gradient.device)
    blocks = block_view(gradient, tensor, stripe)
    blocks = blocks.reshape(stripe.count, tensor.block_rows, tensor.block_columns)
    coefficients = forward_transform(blocks, matrix_a, matrix_b)
    iterations = _ITERATIONS.get(spec.preconditioner)
    if iterations is not None and tensor.sides == 2:
        # The transform multiplies by orthogonal matrices on both sides, so the order does not matter.
        coefficients = orthogonalise(coefficients, iterations, iteration_type(gradient.device))
    return coefficients.view(stripe.count, -1)


def _signs(values: npt.NDArray[np.float32], round_number: int) -> npt.NDArray[np.int8]:
    """Return the signs to send for these values: +1 or -1.

    A block whose momentum is all zero (the rows of tokens never seen) must send signs, too. They
    alternate with the rounds, so that the next round undoes their effect on the parameters.
    """
    at_zero = 1 if round_number % 2 == 0 else -1
    return np.where(values == 0, at_zero, np.sign(values)).astype(np.int8)
