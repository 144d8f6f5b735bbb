"""Ways to train with several local steps of each member between rounds, for local_steps.py.

In a round every member takes a number of steps of its own from the same parameters, with its own
optimizer, whose state it keeps. Its displacement, the old parameters minus the new ones, is sent,
whole or the strongest of each block, and all members take a step from the mean of what was sent.

- DiLoCo (Douillard et al., arXiv 2311.08105): AdamW within a round, Nesterov's momentum 0.9 and a rate
  of 0.7 between them, everything sent.
- MuLoCo (Thérien et al., arXiv 2505.23725): the same with Muon within a round.
- SparseLoCo (Sarfi et al., arXiv 2508.15706): what has not been sent stays in an error that keeps 0.95
  of itself per round; the 64 strongest of 4,096 are sent with two bits each, and the step is their mean.

These recipes were implemented from the papers, not from others' code. Where a paper leaves a choice,
it was made in the method's favour: two bits are a sign and one of two sizes, the sizes are the means
of a block's larger and smaller values, and positions count the fewest bits that the number of ways
to choose them needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from dense import AdamW, Muon, dense_optimizers
from distro_node.protocol.codec.schedule import learning_rate
from distro_node.protocol.codec.update import TensorLayout, update_layout
from recipes import cut, joined, restored, transformed
from training import Trial, default_schedule

_BLOCK = 4096
_SIZE_BITS = 2 * 16
"""For the two sizes of a block's values."""


@dataclass(frozen=True, kw_only=True)
class LocalRecipe:
    """The choices. The defaults are DiLoCo's."""

    steps: int
    """Steps of a member in a round."""
    inner: AdamW | Muon = field(default_factory=AdamW)
    """A member's own optimizer."""
    outer_rate: float = 0.7
    outer_momentum: float = 0.9
    """Nesterov's momentum."""
    chosen: int | None = None
    """How many of 4,096 values are sent; None: all, two bytes each."""
    send: Literal["two bits", "sign"] = "two bits"
    """With `sign`, signs of the blockwise cosine transform are sent, and the step is the sign of the
    sum, as long as the member's own steps together times `outer_rate`: the program's step."""
    memory: float = 0.95
    """The share of the unsent error that a round keeps."""


DILOCO = LocalRecipe(steps=20)
SPARSELOCO = LocalRecipe(steps=20, outer_rate=1.0, outer_momentum=0.0, chosen=64)


def train(recipe: LocalRecipe, rate: float, trial: Trial) -> list[tuple[int, float]]:
    """Train to the end; return steps and held-out loss, after each round or ten times in the run.

    The last round may be shorter.
    """
    setting = trial.setting
    schedule = default_schedule(rate, setting.steps)
    together = [parameter.detach().clone() for parameter in trial.parameters]
    optimizers = [
        dense_optimizers(recipe.inner, trial.table, trial.parameters)
        for _ in range(setting.workers)
    ]
    speakers = [Speaker(recipe, trial) for _ in range(setting.workers)]
    velocity = [torch.zeros_like(parameter) for parameter in together]
    curve, measured = [(0, trial.evaluate())], 0
    for first in range(1, setting.steps + 1, recipe.steps):
        numbers = range(first, min(first + recipe.steps, setting.steps + 1))
        rates = [learning_rate(schedule, number) for number in numbers]
        batches = [trial.next_batch() for _ in numbers]
        sums = [torch.zeros_like(parameter) for parameter in together]
        for member in range(setting.workers):
            _put(trial, together)
            for batch, step_rate in zip(batches, rates, strict=True):
                share = batch.reshape(setting.workers, -1, batch.shape[1])[member]
                trial.gradients(share)
                for optimizer, factor in optimizers[member]:
                    optimizer.param_groups[0]["lr"] = factor * step_rate
                    optimizer.step()
            come = [old - new.detach() for old, new in zip(together, trial.parameters, strict=True)]
            for total, said in zip(sums, speakers[member].speak(come), strict=True):
                total += said
        length = recipe.outer_rate * (sum(rates) if recipe.send == "sign" else 1.0)
        _step(recipe, together, sums, velocity, length, setting.workers)
        _put(trial, together)
        if numbers[-1] * 10 // setting.steps > measured:
            measured = numbers[-1] * 10 // setting.steps
            curve.append((numbers[-1], trial.evaluate()))
    return curve


def bytes_a_step(recipe: LocalRecipe, trial: Trial) -> float:
    """Return the bytes that a member sends for each of its steps."""
    if recipe.chosen is None:
        return 2.0 * trial.elements / recipe.steps
    layout = update_layout(trial.table, 64, recipe.chosen)
    if recipe.send == "sign":
        return layout.body_bytes / recipe.steps
    bits = 0.0
    for tensor in layout.tensors:
        chosen = chosen_of(recipe.chosen, tensor)
        ways = math.comb(tensor.elements, chosen)
        bits += tensor.blocks * (math.log2(ways) + 2 * chosen + _SIZE_BITS)
    return bits / 8 / recipe.steps


def chosen_of(chosen: int, tensor: TensorLayout) -> int:
    """Return how many coefficients of each block of a tensor are sent: the same share of small ones,
    and at least one."""
    return max(1, round(chosen * tensor.elements / _BLOCK))


class Speaker:
    """Encoder of a member's displacement, with the error not yet sent."""

    def __init__(self, recipe: LocalRecipe, trial: Trial) -> None:
        self._recipe = recipe
        self._tensors = update_layout(trial.table, 64, recipe.chosen or 1).tensors
        self._error = [
            torch.zeros(tensor.blocks, tensor.block_rows, tensor.block_columns)
            for tensor in self._tensors
        ]

    @torch.no_grad()
    def speak(self, come: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return what is sent, in the parameters' shapes."""
        if self._recipe.chosen is None:
            return list(come)
        return [self._of(index, each).view(each.shape) for index, each in enumerate(come)]

    def _of(self, index: int, come: torch.Tensor) -> torch.Tensor:
        recipe, tensor = self._recipe, self._tensors[index]
        matrix = come.reshape(tensor.rows, tensor.columns)
        signs = recipe.send == "sign"
        error = self._error[index].mul_(recipe.memory)
        error += transformed(matrix, tensor) if signs else cut(matrix, tensor)
        flat = error.view(tensor.blocks, -1)
        assert recipe.chosen is not None
        count = tensor.top_k if signs else chosen_of(recipe.chosen, tensor)
        positions = flat.abs().topk(count, dim=1).indices
        values = flat.gather(1, positions)
        if signs:
            said = torch.zeros_like(flat).scatter_(1, positions, values.sign())
            flat.scatter_(1, positions, 0.0)
            return restored(said.view_as(error), tensor)
        said = torch.zeros_like(flat).scatter_(1, positions, in_two_bits(values))
        flat.sub_(said)
        return joined(said.view_as(error), tensor)


def in_two_bits(values: torch.Tensor) -> torch.Tensor:
    """Quantise rows of values, each to its sign and one of two sizes of its row."""
    sizes = values.abs()
    large = sizes > sizes.mean(dim=1, keepdim=True)
    counts = large.sum(dim=1, keepdim=True)
    total = sizes.sum(dim=1, keepdim=True)
    upper = (sizes * large).sum(dim=1, keepdim=True)
    high = upper / counts.clamp(min=1)
    low = (total - upper) / (values.shape[1] - counts).clamp(min=1)
    return values.sign() * torch.where(large, high, low)


@torch.no_grad()
def _step(
    recipe: LocalRecipe,
    together: Sequence[torch.Tensor],
    sums: Sequence[torch.Tensor],
    velocity: Sequence[torch.Tensor],
    length: float,
    members: int,
) -> None:
    """Update the shared parameters of all members."""
    for parameter, total, speed in zip(together, sums, velocity, strict=True):
        if recipe.send == "sign":
            parameter.sub_(total.sign(), alpha=length)
            continue
        mean = total / members
        speed.mul_(recipe.outer_momentum).add_(mean)
        parameter.sub_(mean + recipe.outer_momentum * speed, alpha=length)


@torch.no_grad()
def _put(trial: Trial, parameters: Sequence[torch.Tensor]) -> None:
    for parameter, value in zip(trial.parameters, parameters, strict=True):
        parameter.copy_(value)
