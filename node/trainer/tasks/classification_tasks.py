"""The built-in tasks that name the class of a sample: a text or an image.

The loss is the cross-entropy of the sample's class, in nats, with one target a sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import PretrainedConfig, PreTrainedModel

from ....protocol.wire.manifest import Manifest
from ....protocol.wire.structure import StructureError
from ...training.architectures import takes_images
from ...training.errors import TrainerFailed
from ...training.task_names import ImageClassSettings, TextClassSettings, built_in_settings
from ..models.classifiers import channel_numbers, is_classifier
from .data import read_token_rows
from .image_tasks import check_image_data, read_images
from .seeded_random import draw_integers
from .task_batches import Batch, Loss, StoredSample

UNIT = "nats a sample"


class _Classification:
    """What classifying texts and images have in common."""

    unit = UNIT
    images = False

    def __init__(self, manifest: Manifest, config: PretrainedConfig) -> None:
        self.manifest = manifest
        try:
            self.settings: Any = built_in_settings(manifest.task, manifest.task_settings)
        except StructureError as error:
            raise _bad(str(error)) from None
        if takes_images(config.model_type) != self.images or not is_classifier(config):
            kind = "images" if self.images else "texts"
            raise _bad(
                f"it cannot train a {config.model_type!r} like this one, which classifies no {kind}"
            )
        if config.num_labels != len(self.settings.classes):
            raise _bad(
                f"the model tells {config.num_labels} classes apart, but the task has "
                f"{len(self.settings.classes)}"
            )
        self.check(config)

    def check(self, config: PretrainedConfig) -> None:
        """Raise `TrainerFailed` (`bad_model`) if model or data do not fit the settings."""

    def loss(self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> Loss:
        """Return the cross-entropy, summed over the samples."""
        logits, labels = self._logits(model, batch), batch["labels"]
        total = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
        return Loss(total, len(labels))

    def correct(self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> Loss:
        """See `HasAccuracy`: how many samples have the highest score for their own class."""
        right = self._logits(model, batch).argmax(1) == batch["labels"]
        return Loss(right.sum().float(), len(right))

    def _logits(self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        return model(**inputs).logits.float()

    def _labels(self, labels: np.ndarray) -> torch.Tensor:
        """Return the numbers of classes as int64. Raises `TrainerFailed` (`bad_data`) for one that does
        not exist."""
        count = len(self.settings.classes)
        if labels.size and int(labels.max()) >= count:
            raise TrainerFailed(
                "bad_data",
                f"the training data cannot be read: class {int(labels.max())} of {count}",
            )
        return torch.from_numpy(labels.astype(np.int64))


class TextClassification(_Classification):
    """Task: name the class of a text."""

    settings: TextClassSettings

    def check(self, config: PretrainedConfig) -> None:
        """Check as `_Classification` does."""
        data = self.manifest.data
        if data.marked or data.attention != "sequence" or data.end_token is not None:
            raise _bad("its data must be whole texts, without documents and marked tokens")
        if self.settings.pad_token >= data.vocabulary:
            raise _bad(f"the pad_token ({self.settings.pad_token}) is not in the vocabulary")
        if len(self.settings.classes) > 1 << 8 * data.token_bytes:
            raise _bad(
                f"{data.token_bytes} bytes do not hold the number of one of "
                f"{len(self.settings.classes)} classes"
            )

    def batch(self, samples: Sequence[StoredSample]) -> Batch:
        """Return `input_ids` and `attention_mask`, int64 (count, length), and `labels`, int64 (count,).

        The padding at the end of every sample is left out. Raises `TrainerFailed` (`bad_data`) for a
        class or a token that does not exist.
        """
        rows = read_token_rows(self.manifest.data, [sample.data for sample in samples])
        labels = self._labels(rows[:, 0])
        # The last number is the class of the next sample.
        ids = rows[:, 1:-1]
        if ids.size and int(ids.max()) >= self.manifest.data.vocabulary:
            raise TrainerFailed(
                "bad_data",
                f"the training data cannot be read: token {int(ids.max())} is outside the "
                f"vocabulary of {self.manifest.data.vocabulary}",
            )
        places = np.arange(1, ids.shape[1] + 1)
        # A sample of padding alone keeps one token: attention to nothing has no result.
        lengths = np.where(ids != self.settings.pad_token, places, 1).max(1, initial=1)
        longest = int(lengths.max(initial=1))
        attended = places[None, :longest] <= lengths[:, None]
        return {
            "input_ids": torch.from_numpy(np.ascontiguousarray(ids[:, :longest])),
            "attention_mask": torch.from_numpy(attended.astype(np.int64)),
            "labels": labels,
        }

    def probe(self, number: int, length: int) -> Batch:
        """See `HasProbe`: random tokens, the second half of every other sample padding."""
        data = self.manifest.data
        row = draw_integers("probe texts 1", (number,), data.sequence_length + 1) % data.vocabulary
        row[0] = number % len(self.settings.classes)
        end = min(length, data.sequence_length - 1) + 1
        row[end if number % 2 else 1 + end // 2 :] = self.settings.pad_token
        stored = row.astype(f"<u{data.token_bytes}").tobytes()
        return self.batch([StoredSample(stored, number, 0, heldout=True)])


class ImageClassification(_Classification):
    """Task: name the class of an image."""

    images = True
    settings: ImageClassSettings

    def check(self, config: PretrainedConfig) -> None:
        """Check as `_Classification` does."""
        settings = self.settings
        for key, value in (("num_channels", settings.channels), ("image_size", settings.size)):
            found = getattr(config, key, None)
            # A ResNet takes images of any size and states none.
            if found != value and not (key == "image_size" and found is None):
                raise _bad(f"the model's {key} is {found}, but the images have {value}")
        check_image_data(self.manifest.data, settings)

    def batch(self, samples: Sequence[StoredSample]) -> Batch:
        """Return `pixel_values`, float32 (count, channels, size, size), and `labels`, int64 (count,).
        Raises `TrainerFailed` (`bad_data`) for a class that does not exist."""
        settings = self.settings
        labels, pixels = read_images(settings, [sample.data for sample in samples])
        mean, std = (
            np.array(channel_numbers(numbers, settings.channels), np.float32).reshape(1, -1, 1, 1)
            for numbers in (settings.mean, settings.std)
        )
        values = (pixels.astype(np.float32) * np.float32(1 / 255) - mean) / std
        return {"pixel_values": torch.from_numpy(values), "labels": self._labels(labels)}

    def probe(self, number: int, length: int) -> Batch:
        """See `HasProbe`: an image of random bytes, whose class follows from its number."""
        settings = self.settings
        pixels = draw_integers("probe images 1", (number,), settings.values + 1) % 256
        label = number % len(settings.classes)
        stored = label.to_bytes(settings.label_bytes, "little") + bytes(pixels.tolist())
        return self.batch([StoredSample(stored, number, 0, heldout=True)])


def _bad(problem: str) -> TrainerFailed:
    return TrainerFailed("bad_model", f"the manifest's task cannot be used: {problem}")
