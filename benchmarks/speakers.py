"""One member speaks for all of each block: from bits that the others send it, for recipes.py.

In each round members send, of every block, the signs of a few coefficients of their gradients, each only
to those who speak for this block. A speaker adds the signs up in a momentum of its own, takes the
strongest coefficients out of it, and sends their signs to everybody. A member that speaks for a share of
the blocks receives the bits of this share alone, so what it downloads does not grow with the swarm.
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
    """How blocks are spoken for."""

    one_of: int
    """Of so many coefficients a member sends the sign of one. In the next round it is another one's
    turn; all members send those of the same."""
    top_k: int = 64
    """The coefficients of a block that each of its speakers sends."""
    each: int = 1
    """The speakers of a block. They hear of different coefficients, and leave to one another what one
    of them has sent."""
    momentum: float = 0.97

    def received(self, trial: Trial) -> float:
        """The bytes that a member receives in a round for each of the others.

        Of everybody's bits it receives those for its own share of the blocks, and from everybody what
        it sends as a speaker.
        """
        layout = update_layout(trial.table, 64, self.top_k)
        bits = sum(tensor.blocks * heard(tensor, self.one_of) for tensor in layout.tensors)
        return (bits / BITS + layout.body_bytes) * self.each / trial.setting.workers

    def listener(self, trial: Trial) -> Heard:
        """Those who speak in a run."""
        return Heard(self, trial)


class Heard:
    """What the speakers hold: of each tensor the momentum of its blocks' signs (blocks, coefficients of
    a block), one for each speaker of a block."""

    def __init__(self, speakers: Speakers, trial: Trial) -> None:
        self._speakers = speakers
        self._tensors = update_layout(trial.table, 64, speakers.top_k).tensors
        self._momenta = [
            [torch.zeros(tensor.blocks, size(tensor)) for _ in range(speakers.each)]
            for tensor in self._tensors
        ]

    def held(self) -> list[torch.Tensor]:
        """All momenta."""
        return [momentum for momenta in self._momenta for momentum in momenta]

    def stands_after(self, number: int) -> None:
        """Whose turn it is follows from the round."""

    def told(self, member: int, signs: Sequence[torch.Tensor], number: int) -> list[torch.Tensor]:
        """What a member tells in round `number`: the signs that it found, and nothing where there is
        none."""
        return [*signs]

    @torch.no_grad()
    def speak(self, sums: Sequence[torch.Tensor], number: int) -> list[torch.Tensor]:
        """What is sent to everybody of each tensor (blocks, a, b), from the sums of all members' signs
        of all coefficients in round `number`, of which the speakers hear a part."""
        return [self._of(index, total, number) for index, total in enumerate(sums)]

    def _of(self, index: int, total: torch.Tensor, number: int) -> torch.Tensor:
        tensor, momenta = self._tensors[index], self._momenta[index]
        signs = total.flatten(1)
        sent = torch.zeros_like(signs)
        turns = turns_of(tensor, self._speakers.one_of)
        for place, momentum in enumerate(momenta):
            # Speakers of the same block are as far apart as they can be in the order of turns.
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
    """The coefficients of one of its blocks."""
    return tensor.block_rows * tensor.block_columns


def heard(tensor: TensorLayout, one_of: int) -> int:
    """The coefficients of one of its blocks whose signs are sent in a round, at most."""
    return -(-size(tensor) // one_of)


def turns_of(tensor: TensorLayout, one_of: int) -> tuple[torch.Tensor, ...]:
    """Which coefficients of a block have their turn together: every one once, in a random order."""
    return _turns(size(tensor), one_of)


@cache
def _turns(coefficients: int, one_of: int) -> tuple[torch.Tensor, ...]:
    order = torch.randperm(coefficients, generator=torch.Generator().manual_seed(coefficients))
    return order.split(-(-coefficients // one_of))
