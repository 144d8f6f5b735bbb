"""A way in which all members send the same coefficients, so that no bytes are spent on positions.

The mask follows from what all members know: the strongest coefficients of a decayed sum of the signs
decided before, and others drawn from the round's number, so that every coefficient has its turn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from distro_node.protocol.codec.update import DecodedUpdate
from distro_node.protocol.wire.manifest import OptimizerSpec

from .program import Workers
from .trial import Trial


@dataclass(frozen=True, kw_only=True)
class SharedMasks:
    """The choices."""

    optimizer: OptimizerSpec
    drawn: float = 0.5
    """Share of a mask that is drawn rather than chosen by what was decided before."""
    memory: float = 0.97
    """The share of the decided sums that a round keeps."""

    def learner(self, trial: Trial) -> SharedMasksLearner:
        """Return the members of a run."""
        return SharedMasksLearner(self, trial)

    def at(self, top_k: int) -> SharedMasks:
        """Return the same with this number of coefficients a block."""
        return replace(self, optimizer=replace(self.optimizer, top_k=top_k))


class SharedMasksLearner(Workers):
    """A swarm whose members choose coefficients alike."""

    def __init__(self, way: SharedMasks, trial: Trial) -> None:
        super().__init__(way.optimizer, trial)
        self._way = way
        self._decided = [torch.zeros(t.blocks, t.elements) for t in self.layout.tensors]
        self.sent = sum(tensor.blocks * tensor.top_k for tensor in self.layout.tensors) / 8

    def tensors(self) -> list[torch.Tensor]:
        """Return all state besides the parameters."""
        return [*super().tensors(), *self._decided]

    @torch.no_grad()
    def step(self, rate: float, number: int) -> dict[str, float]:
        """Train one round."""
        masks = self._masks(number)
        updates = []
        for worker, share in zip(self.workers, self.trial.shares(number), strict=True):
            with torch.enable_grad():
                gradients = self.trial.gradients(share, number)
            worker.accumulate(gradients)
            signs = []
            for tensor, state, mask in zip(
                self.layout.tensors, worker.coefficients, masks, strict=True
            ):
                momentum = state.read(slice(0, tensor.blocks))
                here = mask.to(momentum.device)
                signs.append(momentum.gather(1, here).sign().to(torch.int8).cpu().numpy())
                state.write(slice(0, tensor.blocks), momentum.scatter_(1, here, 0.0))
            positions = [mask.to(torch.int32).numpy() for mask in masks]
            updates.append(DecodedUpdate(positions, signs))
        for index, (decided, mask) in enumerate(zip(self._decided, masks, strict=True)):
            total = sum(update.signs[index].astype(np.float32) for update in updates)
            decided.mul_(self._way.memory).scatter_add_(1, mask, torch.from_numpy(total))
        self.apply(updates, rate)
        return {}

    def _masks(self, number: int) -> list[torch.Tensor]:
        """Return each tensor's positions, ascending: (blocks, k)."""
        generator = torch.Generator().manual_seed(number)
        found = []
        for tensor, decided in zip(self.layout.tensors, self._decided, strict=True):
            kept = tensor.top_k - round(self._way.drawn * tensor.top_k)
            # Drawn positions get a random rank below all that were kept.
            rank = torch.rand(decided.shape, generator=generator)
            rank.scatter_add_(1, decided.abs().topk(kept, dim=1).indices, torch.ones(decided.shape))
            found.append(rank.topk(tensor.top_k, dim=1).indices.sort(dim=1).values)
        return found
