"""What is learned from a sample: the interface of a task, and where a manifest's task is found.

A task turns the bytes of samples into a batch, and a batch into a loss. All else (which samples, how
gradients become updates, evaluation over what is held out) is the same for every task. Built in are
those of `language_tasks` and `image_tasks`; others come from packages that the owner has installed
(`task_names`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from transformers import PretrainedConfig, PreTrainedModel

from ...protocol.wire.manifest import Manifest
from ..errors import UserError
from .errors import TrainerFailed
from .image_tasks import Diffusion
from .language_tasks import CausalLM, InstructionTuning, MaskedLM
from .task_batches import Batch, Loss, Sample
from .task_names import CAUSAL_LM, DIFFUSION, MASKED_LM, SFT, entry_point

__all__ = ["Batch", "HasBeginnings", "HasProbe", "Loss", "Sample", "Task", "open_task"]


class Task(Protocol):
    """A task, made for one manifest: `Task(manifest, config)`.

    What it cannot do with a manifest, or with data, it says by raising `TrainerFailed` (`bad_model`,
    `bad_data`).
    """

    unit: str
    """What the loss is counted in: "nats a token"."""

    def batch(self, samples: Sequence[Sample]) -> Batch:
        """Tensors on the CPU, by name. The same samples in the same round give the same ones to every
        member: what is drawn is drawn from the manifest's seed, the round and the sample's number."""
        ...

    def loss(self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> Loss:
        """The loss of a batch, which lies where the model does."""
        ...


@runtime_checkable
class HasBeginnings(Protocol):
    """A task whose samples can be cut short. Whoever looks at the work of others then sees, too, whether
    they compute samples to their ends."""

    def beginning(self, batch: Batch) -> Batch | None:
        """Of the batch of one sample what there would be if the sample ended in the middle of what is
        learned in it; None where less than two things are."""
        ...


@runtime_checkable
class HasProbe(Protocol):
    """A task that can say what a model of it is tested with (`probe`). A swarm of a task that cannot
    takes members whose libraries may compute something else."""

    def probe(self, number: int, length: int) -> Batch:
        """A sample of the probe, the same wherever and whenever it is made, as a batch of one; of
        `length` tokens, where samples have some."""
        ...

    def loss(self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> Loss:
        """As `Task` has it."""
        ...


_BUILT_IN: dict[str, Callable[[Manifest, PretrainedConfig], Task]] = {
    CAUSAL_LM: CausalLM,
    SFT: InstructionTuning,
    MASKED_LM: MaskedLM,
    DIFFUSION: Diffusion,
}


def open_task(manifest: Manifest, config: PretrainedConfig) -> Task:
    """The manifest's task. Raises `TrainerFailed`: `no_task` if it is not here, `bad_model` if it does
    not go with the rest of the manifest."""
    make = _BUILT_IN.get(manifest.task) or _installed(manifest.task)
    try:
        return make(manifest, config)
    except TrainerFailed:
        raise
    # Somebody else's code, of the owner's choice.
    except Exception as error:
        raise TrainerFailed(
            "bad_model", f"the task {manifest.task!r} refuses the manifest: {error!r:.200}"
        ) from error


def _installed(name: str) -> Callable[[Manifest, PretrainedConfig], Task]:
    """What a package offers under this name, loaded."""
    try:
        point = entry_point(name)
        if point is None:
            raise TrainerFailed("no_task", f"the task {name!r} is not installed here")
        return point.load()
    except UserError as error:
        raise TrainerFailed("no_task", error.problem) from None
    except TrainerFailed:
        raise
    except Exception as error:
        raise TrainerFailed(
            "no_task", f"the package that brings the task {name!r} cannot be loaded: {error!r:.200}"
        ) from error
