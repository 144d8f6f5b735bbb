"""What a member keeps to itself: momentum, second moment, and what it has sent but not seen counted.

The DisTrO/DeMo update (Peng et al., arXiv 2411.19870): gradients gather in a momentum; the
strongest coefficients of its blockwise cosine transform are sent and subtracted; weak ones stay until
they have grown. Four choices lower the loss at the same bytes, and each member is free in them, since
no optimizer state is ever shared: adding to a gradient what is left of those before it, dividing it by
the root of a local second moment, making its blocks nearly orthogonal, and yielding to what others have
sent. The momentum is kept transformed,
so that sent coefficients are simply taken out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ...protocol.codec.sheet import Signs, heard_in, sign_of_nothing
from ...protocol.codec.update import DecodedUpdate, TensorLayout, UpdateLayout
from ...protocol.wire.manifest import OptimizerSpec
from .blocks import Stripe, block_view, float_basis, forward_transform, stripes
from .device import narrow_type
from .memory_options import IN_FLOAT32, StateOptions
from .state import Noise, StateTensor, new_state

# Against division by zero where a parameter has had no gradient yet. Far below any real root mean
# square gradient, so it does not choose the step of any parameter.
_EPSILON = 1e-12

# The quintic of Muon (Keller Jordan et al., "Muon: An optimizer for hidden layers in neural networks",
# 2024): x ← a·x + b·x³ + c·x⁵ on the singular values. Five rounds bring all of them near 1; three still
# leave small ones smaller, which are mostly noise, and after a division by the root of the second moment
# learn no worse (docs/research.md).
_QUINTIC = (3.4445, -4.7750, 2.0315)
_QUINTIC_ROUNDS = {"orthogonal": 3, "muon": 5}

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
        self,
        layout: UpdateLayout,
        parameters: Sequence[torch.Tensor],
        spec: OptimizerSpec,
        options: StateOptions = IN_FLOAT32,
    ) -> None:
        """`options`: how the state is kept; nobody else can tell."""
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
        """Gradients in the second moment, for its bias correction."""
        self._pending: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    @property
    def momentum(self) -> list[torch.Tensor]:
        """Its coefficients in float32, (blocks, elements) for each tensor."""
        return [state.whole() for state in self.coefficients]

    @property
    def second_moment(self) -> list[torch.Tensor]:
        """In float32, as the parameters; empty where nothing is divided by its root."""
        return [state.whole() for state in self.squares]

    @property
    def by_rows(self) -> dict[str, list[StateTensor]]:
        """What is kept in the parameters' shapes, by name; what the manifest does not ask for is left
        out."""
        kept = {"second_moment": self.squares, "smoothed": self.smoothed}
        return {name: states for name, states in kept.items() if states}

    @torch.no_grad()
    def accumulate(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """m ← β·m + DCT(g), with g smoothed and preconditioned as the manifest says.

        Smoothing, if there is any: f ← s·f + g, g ← f. `rms`: g ← g / (sqrt(v / (1 - β₂ᵗ)) + ε).
        `orthogonal`: the same, and then every block of a matrix is replaced by the nearly orthogonal one
        with the same singular vectors. `muon`: only that, and nearer. A missing gradient counts as zero.
        The gradients are used up: their memory is worked in.
        """
        self.steps += 1
        for index, gradient in enumerate(gradients):
            self._gather(index, gradient)

    @torch.no_grad()
    def decay(self) -> None:
        """A round without samples: the momentum and the smoothed gradient fade as with a gradient of
        zero, and nothing is added to either."""
        for index in range(len(self._layout.tensors)):
            self._gather(index, None)

    @torch.no_grad()
    def take(self, round_number: int) -> Taken:
        """Take the strongest coefficients out of the momentum.

        They stay pending until `forget` or `refund`. A second call for a round gives the first one's
        coefficients back beforehand.
        """
        self.refund(round_number)
        while len(self._pending) >= _MAX_PENDING:
            self.refund(min(self._pending))
        sent = _on_the_cpu([self._take_tensor(i) for i in range(len(self._layout.tensors))])
        self._pending[round_number] = sent
        values = [amounts.numpy() for _, amounts in sent]
        return Taken(
            positions=[positions.to(torch.int32).numpy() for positions, _ in sent],
            values=values,
            signs=[_signs(amounts, round_number) for amounts in values],
        )

    @torch.no_grad()
    def tell(self, one_of: int, turn: int) -> list[Signs]:
        """The signs of the coefficients whose turn it is (`codec.sheet`), of what the last gradient has
        left in the momentum; nothing is taken out of it. What is 0 has one sign, and in the next cycle
        of turns the other."""
        at_zero = sign_of_nothing(one_of, turn)
        told: list[Signs] = []
        for tensor, state in zip(self._layout.tensors, self.coefficients, strict=True):
            heard = heard_in(tensor.elements, one_of, turn)
            columns = torch.from_numpy(heard.astype(np.int64)).to(state.device)
            values = torch.cat(
                [
                    state.read(stripe.blocks).index_select(1, columns).cpu()
                    for stripe in stripes(tensor, state.device)
                ]
            ).numpy()
            told.append(np.where(values == 0, at_zero, np.sign(values)).astype(np.int8))
        return told

    def sent(self, round_number: int, update: DecodedUpdate) -> bool:
        """Whether this is what was taken in a round and is pending still."""
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
        """Add what was sent in a round back into the momentum; False if nothing is pending."""
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
        """The update of a round was counted: it need not come back. False if none is pending."""
        return self._pending.pop(round_number, None) is not None

    @torch.no_grad()
    def yield_to(self, updates: Sequence[DecodedUpdate]) -> None:
        """m ← (1 - damping)·m at every coefficient of which one of these updates speaks.

        What the swarm has just moved needs no second push by members that saw the same gradient
        there; their next coefficients then complement the others' rather than repeat them.
        """
        if not updates or self._spec.damping == 0.0:
            return
        for index, tensor in enumerate(self._layout.tensors):
            state = self.coefficients[index]
            for stripe in stripes(tensor, state.device):
                momentum = state.read(stripe.blocks)
                spoken = [update.positions[index][stripe.blocks] for update in updates]
                indices = torch.from_numpy(np.concatenate(spoken, axis=1).astype(np.int16))
                indices = indices.to(momentum.device).to(torch.int64)
                # Where several speak of one coefficient, the same number is written several times.
                damped = momentum.gather(1, indices).mul_(1 - self._spec.damping)
                momentum.scatter_(1, indices, damped)
                state.write(stripe.blocks, momentum)

    def forget_all(self) -> None:
        """Drop everything pending."""
        self._pending.clear()

    @torch.no_grad()
    def begin_anew(self) -> None:
        """Drop all moments and what is pending, as if there had been no round before."""
        self._pending.clear()
        self.steps = 0
        by_rows = ((states, "rows") for states in self.by_rows.values())
        for states, rows_of in ((self.coefficients, "blocks"), *by_rows):
            for tensor, state in zip(self._layout.tensors, states, strict=True):
                for stripe in stripes(tensor, state.device):
                    rows: slice = getattr(stripe, rows_of)
                    state.write(rows, torch.zeros_like(state.read(rows)))

    def _gather(self, index: int, gradient: torch.Tensor | None) -> None:
        """Take a tensor's gradient into its momentum, which fades alone if there is none."""
        tensor, state = self._layout.tensors[index], self.coefficients[index]
        if gradient is not None:
            # A convolution may leave its kernel's in another order, and a bfloat16 copy in 16 bits.
            gradient = gradient.to(torch.float32).contiguous().view(tensor.rows, tensor.columns)
        for stripe in stripes(tensor, state.device):
            momentum = state.read(stripe.blocks).mul_(self._spec.momentum)
            self._smooth(index, stripe, None if gradient is None else gradient[stripe.rows])
            if gradient is not None:
                self._precondition(index, stripe, gradient[stripe.rows])
                momentum.add_(transformed_stripe(gradient, tensor, self._spec, stripe))
            state.write(stripe.blocks, momentum)

    def _smooth(self, index: int, stripe: Stripe, gradient: torch.Tensor | None) -> None:
        """Add to some rows of a gradient what those before it have left, which fades alone if there is
        none."""
        if not self.smoothed:
            return
        state = self.smoothed[index]
        smoothed = state.read(stripe.rows).mul_(self._spec.smoothing)
        state.write(stripe.rows, smoothed if gradient is None else gradient.add_(smoothed))

    def _precondition(self, index: int, stripe: Stripe, gradient: torch.Tensor) -> None:
        """Divide some rows of a gradient by the root of their second moment, which takes them in."""
        if not self.squares:
            return
        beta = self._spec.second_moment
        second = self.squares[index].read(stripe.rows).mul_(beta)
        second.addcmul_(gradient, gradient, value=1 - beta)
        self.squares[index].write(stripe.rows, second)
        gradient.div_(root_of(second, beta, self.steps))

    def _take_tensor(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions (int16) and values (float32) of one tensor, both (blocks, k), on its device."""
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


def _on_the_cpu(
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return pairs of two-dimensional tensors in main memory: in one copy of each kind from each device,
    as a GPU is waited for at every copy."""
    moved: list[tuple[torch.Tensor, torch.Tensor]] = list(pairs)
    by_device: dict[torch.device, list[int]] = {}
    for index, (positions, _) in enumerate(pairs):
        if positions.device.type != "cpu":
            by_device.setdefault(positions.device, []).append(index)
    for indices in by_device.values():
        sizes = [pairs[index][0].numel() for index in indices]
        flat = [
            torch.cat([pairs[index][kind].reshape(-1) for index in indices]).cpu().split(sizes)
            for kind in (0, 1)
        ]
        for index, positions, values in zip(indices, *flat, strict=True):
            shape = pairs[index][0].shape
            # Copies of their own: each tensor's may be dropped without the others'.
            moved[index] = positions.view(shape).clone(), values.view(shape).clone()
    return moved


def root_of(second_moment: torch.Tensor, beta: float, steps: int) -> torch.Tensor:
    """What a gradient is divided by: sqrt(v / (1 - β₂ᵗ)) + ε, after so many steps."""
    return (second_moment / (1 - beta**steps)).sqrt_().add_(_EPSILON)


def transformed(
    gradient: torch.Tensor, tensor: TensorLayout, spec: OptimizerSpec
) -> Iterator[tuple[Stripe, torch.Tensor]]:
    """`transformed_stripe` of each stripe of a gradient."""
    for stripe in stripes(tensor, gradient.device):
        yield stripe, transformed_stripe(gradient, tensor, spec, stripe)


def transformed_stripe(
    gradient: torch.Tensor, tensor: TensorLayout, spec: OptimizerSpec, stripe: Stripe
) -> torch.Tensor:
    """The coefficients of some blocks of a contiguous gradient: (blocks, elements), made nearly
    orthogonal where the manifest says so. What it is to be divided by, it is divided by already."""
    matrix_a = float_basis(tensor.block_rows, gradient.device)
    matrix_b = float_basis(tensor.block_columns, gradient.device)
    blocks = block_view(gradient, tensor, stripe)
    blocks = blocks.reshape(stripe.count, tensor.block_rows, tensor.block_columns)
    coefficients = forward_transform(blocks, matrix_a, matrix_b)
    rounds = _QUINTIC_ROUNDS.get(spec.preconditioner)
    if rounds is not None and tensor.sides == 2:
        # The transform is orthogonal on both sides, so it may as well come first.
        coefficients = orthogonalised(coefficients, rounds, _quintic_type(gradient.device))
    return coefficients.view(stripe.count, -1)


def _signs(values: npt.NDArray[np.float32], round_number: int) -> npt.NDArray[np.int8]:
    """What is sent of these values: +1 or -1.

    A block without any momentum (rows of tokens never seen) must send something too. Its sign alternates
    with the rounds, so that what it does to the parameters is undone next round.
    """
    at_zero = 1 if round_number % 2 == 0 else -1
    return np.where(values == 0, at_zero, np.sign(values)).astype(np.int8)


def _quintic_type(device: torch.device) -> torch.dtype:
    """Return bfloat16 where the device has units for it: the rounds only have to come close to 1, Muon's
    own run in it, and half of the memory traffic is saved. An update's signs are the member's affair."""
    return torch.bfloat16 if narrow_type(device) is torch.bfloat16 else torch.float32


def orthogonalised(
    blocks_NAB: torch.Tensor, rounds: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Return U·f(S)·Vᵀ for each block U·S·Vᵀ, f close to 1, scaled so that elements are of size 1, in
    float32; the rounds are computed in `dtype`."""
    a, b, c = _QUINTIC
    wide = blocks_NAB if blocks_NAB.shape[1] <= blocks_NAB.shape[2] else blocks_NAB.mT
    norms = wide.square().sum(dim=(1, 2), keepdim=True).sqrt_()
    result = (wide / norms.add_(_EPSILON)).to(dtype)
    for _ in range(rounds):
        square = result @ result.mT
        polynomial = torch.baddbmm(square, square, square, beta=b, alpha=c)
        result = torch.baddbmm(result, polynomial, result, beta=a)
    result = result.to(torch.float32).mul_(math.sqrt(result.shape[2]))
    return result if wide is blocks_NAB else result.mT.contiguous()
