"""A few members aggregate each block, from bits that the others send to them, for recipes.py.

In each round members send, for every block, the signs of a few coefficients of their gradients, only
to the aggregators of this block. An aggregator adds the signs up in a momentum of its own, takes the
strongest coefficients out of it, and sends their signs to all members. A member that aggregates a
share of the blocks receives the bits of this share alone, so its download does not grow with the
swarm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from distro_node.protocol.codec.update import TensorLayout, update_layout
from training import Trial

BITS = 8


@dataclass(frozen=True, kw_only=True)
class Speakers:
    """How blocks are aggregated."""

    rotation_steps: int
    """A member sends the sign of one in this number of coefficients, the next one in the next round;
    the coefficients are the same for all members."""
    top_k: int = 64
    """The coefficients of a block that each of its aggregators sends."""
    each: int = 1
    """Aggregators per block. They receive different coefficients, and what one of them has sent is
    removed from the momenta of the others."""
    momentum: float = 0.97

    def received(self, trial: Trial) -> float:
        """Return the bytes that a member receives in a round for each of the others.

        Of all members' bits it receives those for its own share of the blocks, and from each member
        what that one sends as an aggregator.
        """
        layout = update_layout(trial.table, 64, self.top_k)
        bits = sum(tensor.blocks * heard(tensor, self.rotation_steps) for tensor in layout.tensors)
        return (bits / BITS + layout.body_bytes) * self.each / trial.setting.workers

    def listener(self, trial: Trial) -> Heard:
        """Return the aggregators of a run."""
        return Heard(self, trial)


class Heard:
    """The aggregators' state: of each tensor the momentum of its blocks' signs (blocks, coefficients
    of a block), one for each aggregator of a block."""

    def __init__(self, speakers: Speakers, trial: Trial) -> None:
        self._speakers = speakers
        self._tensors = update_layout(trial.table, 64, speakers.top_k).tensors
        self._momenta = [
            [torch.zeros(tensor.blocks, size(tensor)) for _ in range(speakers.each)]
            for tensor in self._tensors
        ]

    def held(self) -> list[torch.Tensor]:
        """Return all momenta."""
        return [momentum for momenta in self._momenta for momentum in momenta]

    def stands_after(self, number: int) -> None:
        """Do nothing: the coefficients that are due follow from the round."""

    def told(self, member: int, signs: Sequence[torch.Tensor], number: int) -> list[torch.Tensor]:
        """Return what a member sends in round `number`: the signs that it found, zero where there is
        none."""
        return [*signs]

    @torch.no_grad()
    def speak(self, sums: Sequence[torch.Tensor], number: int) -> list[torch.Tensor]:
        """Return what is sent to all of each tensor (blocks, a, b), from the sums of all members'
        signs of all coefficients in round `number`, of which the aggregators receive a part."""
        return [self._of(index, total, number) for index, total in enumerate(sums)]

    def _of(self, index: int, total: torch.Tensor, number: int) -> torch.Tensor:
        tensor, momenta = self._tensors[index], self._momenta[index]
        signs = total.flatten(1)
        sent = torch.zeros_like(signs)
        turns = turns_of(tensor, self._speakers.rotation_steps)
        for place, momentum in enumerate(momenta):
            # The aggregators of a block are as far apart as possible in the order of coefficients.
            turn = (number + place * len(turns) // len(momenta)) % len(turns)
            momentum.mul_(self._speakers.momentum)
            momentum[:, turns[turn]] += signs[:, turns[turn]]
            positions = momentum.abs().topk(tensor.top_k, dim=1).indices
            strongest = momentum.gather(1, positions).sign()
            sent.scatter_add_(1, positions, strongest)
            for other in momenta:
                other.scatter_(1, positions, 0.0)
        return sent.view_as(total)


def size(tensor: TensorLayout) -> int:
    """Return the number of coefficients of one of its blocks."""
    return tensor.block_rows * tensor.block_columns


def heard(tensor: TensorLayout, rotation_steps: int) -> int:
    """Return the number of coefficients of one of its blocks whose signs are sent in a round, at
    most."""
    return -(-size(tensor) // rotation_steps)


def turns_of(tensor: TensorLayout, rotation_steps: int) -> tuple[torch.Tensor, ...]:
    """Return which coefficients of a block are sent together: each one once per cycle, in random
    order."""
    return _turns(size(tensor), rotation_steps)


@cache
def _turns(coefficients: int, rotation_steps: int) -> tuple[torch.Tensor, ...]:
    order = torch.randperm(coefficients, generator=torch.Generator().manual_seed(coefficients))
    return order.split(-(-coefficients // rotation_steps))
