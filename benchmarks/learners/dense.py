"""The peers: AdamW and Muon on the mean gradient of all members."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from distro_node.node.trainer.optimizer.orthogonal import MUON, orthogonalise
from distro_node.protocol.wire.manifest import ParameterSpec

from .trial import Trial


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """The settings of AdamW with dense averaging, except its learning rate."""

    second_moment: float = 0.95
    weight_decay: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Muon:
    """The settings of Muon with dense averaging (Keller Jordan et al., 2024), except its learning rate.

    The momentum of every hidden matrix is made orthogonal as a whole, with Nesterov's look-ahead and
    five iterations of the quintic, and scaled so that the root mean square of a step would be the
    learning rate if all singular values became 1. (The quintic leaves them around 0.9.) Embedding,
    head and norms take Adam's step with the same learning rate.
    """

    momentum: float = 0.95
    second_moment: float = 0.95
    """For Adam's part."""


@dataclass(frozen=True, kw_only=True)
class Dense:
    """Dense averaging with one of these optimizers."""

    optimizer: AdamW | Muon

    def learner(self, trial: Trial) -> DenseLearner:
        """Return the state of a run, the same at all members."""
        return DenseLearner(self.optimizer, trial)

    def at(self, top_k: int) -> Dense:
        """Return itself: everything is sent."""
        del top_k
        return self


class DenseLearner:
    """All members at once: the mean of their gradients is that of all their samples."""

    def __init__(self, spec: AdamW | Muon, trial: Trial) -> None:
        self._trial = trial
        self._optimizers = dense_optimizers(spec, trial.table, trial.parameters)
        self.sent = float(trial.gradient_bytes * trial.elements)

    def step(self, rate: float, number: int) -> dict[str, float]:
        """Train one round."""
        trial = self._trial
        gradients = trial.gradients(np.concatenate(trial.shares(number)), number)
        for parameter, gradient in zip(trial.parameters, gradients, strict=True):
            parameter.grad = gradient
        for optimizer, factor in self._optimizers:
            optimizer.param_groups[0]["lr"] = factor * rate
            optimizer.step()
        return {}

    def tensors(self) -> list[torch.Tensor]:
        """Return the optimizers' state."""
        return tensors_of(optimizer for optimizer, _ in self._optimizers)

    def resume(self, number: int) -> None:
        """Do nothing: the optimizers' step counts are in their tensors."""


def dense_optimizers(
    spec: AdamW | Muon,
    table: Sequence[ParameterSpec],
    parameters: Sequence[torch.nn.Parameter],
) -> list[tuple[torch.optim.Optimizer, float]]:
    """Return torch's optimizers of a table's parameters, each with the ratio of its learning rate to
    the run's."""
    if isinstance(spec, AdamW):
        return [(adam(parameters, spec), 1.0)]
    hidden, others = [], []
    for described, parameter in zip(table, parameters, strict=True):
        (hidden if is_hidden_matrix(described) else others).append(parameter)
    muon = MuonInFloat32(hidden, spec.momentum)
    return [(muon, 1.0), (adam(others, AdamW(second_moment=spec.second_moment)), 1.0)]


def is_hidden_matrix(described: ParameterSpec) -> bool:
    """Whether Muon trains this parameter: matrices inside layers."""
    return ".layers." in described.name and len(described.shape) == 2


def adam(parameters: Sequence[torch.nn.Parameter], spec: AdamW) -> torch.optim.AdamW:
    """Return torch's AdamW at a learning rate of zero, with all moments at zero.

    By itself it creates its moments in the first step, so that a resumed run could not restore them
    before that.
    """
    made = torch.optim.AdamW(
        parameters, lr=0.0, betas=(0.9, spec.second_moment), weight_decay=spec.weight_decay
    )
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    made.step()
    made.zero_grad()
    for tensor in tensors_of([made]):
        tensor.zero_()
    return made


def tensors_of(optimizers: Iterable[torch.optim.Optimizer]) -> list[torch.Tensor]:
    """Return all tensors that these optimizers hold besides the parameters, in a fixed order."""
    return [
        optimizer.state[parameter][name]
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
        for name in sorted(optimizer.state[parameter])
    ]


class MuonInFloat32(torch.optim.Optimizer):
    """`torch.optim.Muon` with Nesterov's look-ahead and five iterations of the quintic, in float32:
    torch computes these in bfloat16, which is slow on a CPU without bfloat16 arithmetic.

    The learning rate is the root mean square of a step if all singular values became 1.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], momentum: float) -> None:
        super().__init__(parameters, {"lr": 0.0})
        self._momentum = momentum
        for parameter in parameters:
            self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    @torch.no_grad()
    # The loss is never recomputed during a step here, so there is no closure.
    def step(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update the matrices."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                momentum = self.state[parameter]["momentum_buffer"]
                momentum.lerp_(parameter.grad, 1 - self._momentum)
                ahead = parameter.grad.lerp(momentum, self._momentum)
                even = orthogonalise(ahead[None], MUON)[0]
                parameter.sub_(even, alpha=group["lr"])
