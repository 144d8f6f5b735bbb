"""The interface of a way to train, and the loop that all ways share."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch

from .checkpoint import Checkpoint, Progress
from .trial import Trial

POINTS = 10
"""Measurements of the held-out loss in a run."""


class Learner(Protocol):
    """All members of one run: their state, and a round of training."""

    sent: float
    """Bytes that a member sends in a round, on average."""

    def step(self, rate: float, number: int) -> dict[str, float]:
        """Train one round, and move the trial's parameters. Return figures of this round, of which
        the run keeps the means; usually none."""
        ...

    def tensors(self) -> list[torch.Tensor]:
        """Return the state besides the parameters, the same tensors in every round: a checkpoint
        has them, and a resumed run writes to them."""
        ...

    def resume(self, number: int) -> None:
        """Note that the state was restored from a run with `number` completed rounds."""
        ...


class Method(Protocol):
    """The settings of a way: a dataclass, so that two ways are the same if their fields are."""

    def learner(self, trial: Trial) -> Learner:
        """Return the members of a run."""
        ...

    def at(self, top_k: int) -> Method:
        """Return the same with this number of coefficients a block; itself if it has none."""
        ...


@dataclass
class Outcome:
    """What training one way brought."""

    curve: list[tuple[int, float]]
    """Rounds and held-out loss."""
    sent: float
    figures: dict[str, float] = field(default_factory=dict)


def train(method: Method, peak: float, trial: Trial, checkpoint: Checkpoint) -> Outcome:
    """Train to the end, from the checkpoint if there is one."""
    setting, learner = trial.setting, method.learner(trial)
    tensors = [*(parameter.data for parameter in trial.parameters), *learner.tensors()]
    progress = checkpoint.restore(tensors)
    if progress is None:
        progress = Progress(curve=[(0, trial.evaluate())])
    else:
        learner.resume(progress.number)
    for number in range(progress.number + 1, setting.rounds + 1):
        progress.add(learner.step(setting.rate(peak, number), number))
        progress.number = number
        if number % max(1, setting.rounds // POINTS) == 0 or number == setting.rounds:
            progress.curve.append((number, trial.evaluate()))
        checkpoint.keep(progress, tensors)
    return Outcome(progress.curve, learner.sent, progress.means())


def described(method: Method) -> dict[str, Any]:
    """Return a method's settings, for JSON."""
    return {"method": type(method).__name__, **asdict(method)}  # pyright: ignore[reportArgumentType]
