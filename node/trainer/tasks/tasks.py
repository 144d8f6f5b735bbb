"""The interface of a task, and the lookup of a manifest's task.

A task turns the bytes of samples into a batch, and a batch into a loss. Everything else (the choice
of samples, how gradients become updates, evaluation over held-out samples) is the same for every
task. Built in are those of `language_tasks`, `preference_task`, `group_rewards`, `image_tasks` and
`classification_tasks`; others come from packages that the owner has installed (`task_names`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from transformers import PretrainedConfig, PreTrainedModel

from ....protocol.wire.manifest import Manifest
from ...errors import UserError
from ...storage.blob_store import BlobStore
from ...training.errors import TrainerFailed
from ...training.task_names import (
    CAUSAL_LM,
    DIFFUSION,
    DPO,
    GRPO,
    IMAGE_CLASSIFICATION,
    MASKED_LM,
    SFT,
    TEXT_CLASSIFICATION,
    entry_point,
)
from .classification_tasks import ImageClassification, TextClassification
from .group_rewards import GroupRewards
from .image_tasks import Diffusion
from .language_tasks import CausalLM, InstructionTuning, MaskedLM
from .preference_task import DirectPreference
from .task_batches import Batch, Loss, StoredSample

__all__ = [
    "Batch",
    "HasAccuracy",
    "HasBeginnings",
    "HasMargins",
    "HasProbe",
    "Loss",
    "NeedsBlobs",
    "StoredSample",
    "Task",
    "open_task",
]


class Task(Protocol):
    """A task, made for one manifest: `Task(manifest, config)`.

    It raises `TrainerFailed` (`bad_model`, `bad_data`) for a manifest or data that it cannot handle.
    """

    unit: str
    """The unit of the loss, for example "nats a token"."""

    def batch(self, samples: Sequence[StoredSample]) -> Batch:
        """Return tensors on the CPU, by name. The same samples in the same round give the same
        tensors at every member: all randomness derives from the manifest's seed, the round and the
        sample's number."""
        ...

    def loss(self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> Loss:
        """Return the loss of a batch, which is on the model's device.

        It calls the model equally often for batches of any size: devices that share a model in shards
        take part in each other's calls. Only `grpo` does not, and there it has one sample at a time."""
        ...


@runtime_checkable
class HasBeginnings(Protocol):
    """A task whose samples can be truncated, so that an auditor can also see whether members compute
    samples to their ends."""

    def beginning(self, batch: Batch) -> Batch | None:
        """Return the batch of one sample as if the sample ended in the middle of its targets; None if it
        has fewer than two."""
        ...


@runtime_checkable
class HasMargins(Protocol):
    """A task whose samples are pairs, of which the model prefers one side."""

    def margins(self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return by how many nats the model prefers the chosen side of each pair: float32 (samples,)."""
        ...


@runtime_checkable
class HasProbe(Protocol):
    """A task that can supply the samples with which a model is probed (`probe`). A swarm of any
    other task accepts members whose libraries may compute another function."""

    def probe(self, number: int, length: int) -> Batch:
        """Return sample number `number` of the probe, the same on every machine and in every round, as a
        batch of one. If samples consist of tokens, it has `length` of them."""
        ...

    def loss(self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> Loss:
        """Return the loss as `Task` does."""
        ...


@runtime_checkable
class NeedsBlobs(Protocol):
    """A task that reads blobs of the swarm besides samples, such as the tokenizer. They are on the disk
    when a loss of samples is computed."""

    def use_blobs(self, store: BlobStore) -> None:
        """Keep the store for later."""
        ...


@runtime_checkable
class HasAccuracy(Protocol):
    """A task whose answers are right or wrong, so that the held-out samples give an accuracy, too."""

    def correct(self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> Loss:
        """Return how many answers to a batch are right, and of how many, as a `Loss`."""
        ...


_BUILT_IN: dict[str, Callable[[Manifest, PretrainedConfig], Task]] = {
    CAUSAL_LM: CausalLM,
    SFT: InstructionTuning,
    DPO: DirectPreference,
    GRPO: GroupRewards,
    MASKED_LM: MaskedLM,
    DIFFUSION: Diffusion,
    TEXT_CLASSIFICATION: TextClassification,
    IMAGE_CLASSIFICATION: ImageClassification,
}


def open_task(manifest: Manifest, config: PretrainedConfig) -> Task:
    """Return the manifest's task. Raises `TrainerFailed`: `no_task` if it is not available,
    `bad_model` if it does not fit the rest of the manifest."""
    make = _BUILT_IN.get(manifest.task) or _installed(manifest.task)
    try:
        return make(manifest, config)
    except TrainerFailed:
        raise
    # A task may be third-party code, of the owner's choice, and raise anything.
    except Exception as error:
        raise TrainerFailed(
            "bad_model", f"the task {manifest.task!r} refuses the manifest: {error!r:.200}"
        ) from error


def _installed(name: str) -> Callable[[Manifest, PretrainedConfig], Task]:
    """Load the task that an installed package offers under this name."""
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
            "no_task",
            f"the package that provides the task {name!r} cannot be loaded: {error!r:.200}",
        ) from error
