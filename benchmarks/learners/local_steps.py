"""Ways in which members take several steps of their own between exchanges.

A member takes its steps from common parameters with its own optimizer, whose state it keeps. Its
displacement, the common parameters minus its own, is sent, and all members take a step from what was
sent:

- DiLoCo (Douillard et al., arXiv 2311.08105): AdamW within, Nesterov's momentum 0.9 and a rate of 0.7
  between, everything sent. MuLoCo (Thérien et al., arXiv 2505.23725): the same with Muon within.
- SparseLoCo (Sarfi et al., arXiv 2508.15706): what has not been sent stays in an error that keeps 0.95
  of itself; the 64 strongest of 4,096 are sent with two bits each, and the step is their mean.
- The program's exchange (`exchange`): the displacement takes the gradient's place before momentum,
  selection and signs, and the step is the exact shared one, as long as the member's steps together.

Written from the papers. Where one leaves a choice it was made in the method's favour: two bits are a
sign and one of two sizes, these are the means of a block's larger and smaller values, and positions
count the fewest bits that the number of ways to choose them needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from distro_node.protocol.codec.update import DecodedUpdate, TensorLayout, update_layout
from distro_node.protocol.wire.manifest import OptimizerSpec

from .dense import AdamW, Muon, dense_optimizers, tensors_of
from .program import Workers
from .trial import Trial

_BLOCK = 4096
_SIZE_BITS = 2 * 16
"""For the two sizes of a block's values."""


@dataclass(frozen=True, kw_only=True)
class LocalSteps:
    """The choices; the defaults are DiLoCo's."""

    steps: int
    """Steps of a member between exchanges, each on the sequences of one round."""
    inner: AdamW | Muon = field(default_factory=AdamW)
    """The member's own optimizer."""
    outer_rate: float = 0.7
    outer_momentum: float = 0.9
    """Nesterov's."""
    chosen: int | None = None
    """Values sent of 4,096, two bits each; None: all, two bytes each."""
    memory: float = 0.95
    """The share of the unsent error that an exchange keeps."""
    exchange: OptimizerSpec | None = None
    """The program's exchange, in place of the three choices before."""

    def learner(self, trial: Trial) -> LocalStepsLearner:
        """Return the members of a run."""
        return LocalStepsLearner(self, trial)

    def at(self, top_k: int) -> LocalSteps:
        """Return the same with this number of coefficients a block, if it has the program's."""
        if self.exchange is None:
            return self
        return replace(self, exchange=replace(self.exchange, top_k=top_k))


class LocalStepsLearner:
    """Members that each have parameters of their own between two exchanges."""

    def __init__(self, way: LocalSteps, trial: Trial) -> None:
        self._way, self._trial = way, trial
        members = range(trial.setting.members)
        self._parameters = [parameter.data for parameter in trial.parameters]
        """The common ones, except while a member trains."""
        self._own = [[parameter.clone() for parameter in self._parameters] for _ in members]
        self._optimizers = [
            dense_optimizers(way.inner, trial.table, trial.parameters) for _ in members
        ]
        self._velocity = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._exchange = None if way.exchange is None else Workers(way.exchange, trial)
        self._tensors = update_layout(trial.table, 64, 1).tensors
        self._errors = [
            [torch.zeros_like(parameter) for parameter in self._parameters]
            for _ in members
            if way.chosen is not None
        ]
        self._length = torch.zeros(())
        """The sum of the rates since the last exchange."""
        self.sent = self._bytes() / way.steps

    def tensors(self) -> list[torch.Tensor]:
        """Return all state besides the common parameters."""
        return [
            *(tensor for own in self._own for tensor in own),
            *(t for optimizers in self._optimizers for t in tensors_of(o for o, _ in optimizers)),
            *self._velocity,
            *(tensor for error in self._errors for tensor in error),
            *(self._exchange.tensors() if self._exchange else []),
            self._length,
        ]

    def resume(self, number: int) -> None:
        """Set the number of gradients in second moments, if the exchange has any."""
        if self._exchange:
            self._exchange.resume(number // self._way.steps)

    def step(self, rate: float, number: int) -> dict[str, float]:
        """Take one step of every member, and exchange if it is time to, or the last round."""
        common = [parameter.clone() for parameter in self._parameters]
        shares = self._trial.shares(number)
        for own, optimizers, share in zip(self._own, self._optimizers, shares, strict=True):
            _copy(self._parameters, own)
            gradients = self._trial.gradients(share, number)
            for parameter, gradient in zip(self._trial.parameters, gradients, strict=True):
                parameter.grad = gradient
            for optimizer, factor in optimizers:
                optimizer.param_groups[0]["lr"] = factor * rate
                optimizer.step()
            _copy(own, self._parameters)
        _copy(self._parameters, common)
        self._length += rate
        if number % self._way.steps == 0 or number == self._trial.setting.rounds:
            self._meet(number)
            self._length.zero_()
            for own in self._own:
                _copy(own, self._parameters)
        return {}

    @torch.no_grad()
    def _meet(self, number: int) -> None:
        """Exchange displacements, and move the common parameters."""
        way = self._way
        moved = [
            [old - new for old, new in zip(self._parameters, own, strict=True)] for own in self._own
        ]
        if self._exchange:
            updates = []
            for worker, displacement in zip(self._exchange.workers, moved, strict=True):
                worker.accumulate(displacement)
                taken = worker.take(number)
                worker.forget(number)
                updates.append(DecodedUpdate(taken.positions, taken.signs))
            length = torch.tensor(way.outer_rate, dtype=torch.float32) * self._length
            self._exchange.apply(updates, float(length))
            return
        for index, parameter in enumerate(self._parameters):
            heard = [self._coarse(m, index, each[index]) for m, each in enumerate(moved)]
            mean = torch.stack(heard).mean(0)
            speed = self._velocity[index].mul_(way.outer_momentum).add_(mean)
            parameter.sub_(mean + way.outer_momentum * speed, alpha=way.outer_rate)

    def _coarse(self, member: int, index: int, displacement: torch.Tensor) -> torch.Tensor:
        """Return what a member sends of one tensor."""
        if self._way.chosen is None:
            return displacement
        tensor = self._tensors[index]
        error = self._errors[member][index].mul_(self._way.memory).add_(displacement)
        blocks = cut(error.view(tensor.rows, tensor.columns), tensor).flatten(1)
        positions = blocks.abs().topk(_chosen_of(self._way.chosen, tensor), dim=1).indices
        values = in_two_bits(blocks.gather(1, positions))
        coarse = joined(torch.zeros_like(blocks).scatter_(1, positions, values), tensor)
        error.sub_(coarse.view_as(error))
        return coarse.view_as(error)

    def _bytes(self) -> float:
        """Return the bytes of one exchange."""
        if self._exchange:
            return self._exchange.sent
        if self._way.chosen is None:
            return self._trial.gradient_bytes * float(self._trial.elements)
        bits = 0.0
        for tensor in self._tensors:
            chosen = _chosen_of(self._way.chosen, tensor)
            ways = math.comb(tensor.elements, chosen)
            bits += tensor.blocks * (math.log2(ways) + 2 * chosen + _SIZE_BITS)
        return bits / 8


def cut(matrix: torch.Tensor, tensor: TensorLayout) -> torch.Tensor:
    """Return a matrix as its blocks: (blocks, a, b)."""
    a, b = tensor.block_rows, tensor.block_columns
    return matrix.view(tensor.down, a, tensor.across, b).transpose(1, 2).reshape(-1, a, b)


def joined(blocks: torch.Tensor, tensor: TensorLayout) -> torch.Tensor:
    """Inverse of `cut`."""
    a, b = tensor.block_rows, tensor.block_columns
    rows = blocks.view(tensor.down, tensor.across, a, b).transpose(1, 2)
    return rows.reshape(tensor.rows, tensor.columns)


def in_two_bits(values: torch.Tensor) -> torch.Tensor:
    """Quantise rows of values, each to its sign and one of two sizes of its row."""
    sizes = values.abs()
    large = sizes > sizes.mean(dim=1, keepdim=True)
    counts = large.sum(dim=1, keepdim=True)
    upper = (sizes * large).sum(dim=1, keepdim=True)
    high = upper / counts.clamp(min=1)
    rest = sizes.sum(dim=1, keepdim=True) - upper
    low = rest / (values.shape[1] - counts).clamp(min=1)
    return values.sign() * torch.where(large, high, low)


def _chosen_of(chosen: int, tensor: TensorLayout) -> int:
    """Return how many values of each block of a tensor are sent: the same share of small blocks, and
    at least one."""
    return max(1, round(chosen * tensor.elements / _BLOCK))


@torch.no_grad()
def _copy(to: Sequence[torch.Tensor], source: Sequence[torch.Tensor]) -> None:
    for own, other in zip(to, source, strict=True):
        own.copy_(other)
