"""The built-in task that learns images: predicting the noise added to an image.

An image x, with values between -1 and 1, is mixed with noise ε of the standard normal distribution,
√ᾱ(t)·x + √(1 - ᾱ(t))·ε, at a step t of the noise schedule, and the model predicts ε (Ho et al., arXiv
2006.11239, algorithm 1). Step and noise follow from the manifest's seed, the round and the sample's
number, so that every member computes the same gradient for a sample; held-out samples have the same
step and noise in every round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from transformers import PretrainedConfig, PreTrainedModel

from ....protocol.wire.manifest import DataSpec, Manifest
from ....protocol.wire.structure import StructureError
from ...training.errors import TrainerFailed
from ...training.task_names import ImageSettings, PixelSettings, built_in_settings
from ..models.denoisers import DenoiserConfig, noise_schedule
from .seeded_random import draw_integers, draw_normal
from .task_batches import Batch, Loss, StoredSample

# The middle of a byte's range maps to 0.
_MIDDLE = 127.5


class Diffusion:
    """Task: learn images by removing noise from them."""

    unit = "squared error of the noise in a value of a pixel"
    settings: ImageSettings

    def __init__(self, manifest: Manifest, config: PretrainedConfig) -> None:
        self.manifest = manifest
        try:
            settings = built_in_settings(manifest.task, manifest.task_settings)
        except StructureError as error:
            raise _bad(str(error)) from None
        if not isinstance(settings, ImageSettings):
            raise _bad(f"{manifest.task!r} is not about images")
        self.settings = settings
        self._check_model(config)
        check_image_data(manifest.data, settings)
        image_power = noise_schedule(settings).alphas_cumprod.double()
        self._image_share = image_power.sqrt().float()
        self._noise_share = (1 - image_power).sqrt().float()

    def batch(self, samples: Sequence[StoredSample]) -> Batch:
        """Return `noisy` and `noise`, float32 (count, channels, size, size), `times`, int64 (count,),
        and if there are classes `labels`, int64 (count,). Raises `TrainerFailed` (`bad_data`) for a
        class that does not exist."""
        settings = self.settings
        labels, pixels = read_images(settings, [sample.data for sample in samples])
        images = torch.from_numpy(pixels.astype(np.float32) / _MIDDLE - 1)
        times, noise = zip(*(self._draw(sample) for sample in samples), strict=True)
        steps = torch.tensor(times)
        noises = torch.from_numpy(np.stack(noise)).reshape(images.shape)
        image_share, noise_share = (
            share[steps].view(-1, 1, 1, 1) for share in (self._image_share, self._noise_share)
        )
        batch = {
            "noisy": image_share * images + noise_share * noises,
            "noise": noises,
            "times": steps,
        }
        if settings.classes:
            batch["labels"] = torch.from_numpy(self._checked(labels))
        return batch

    def probe(self, number: int, length: int) -> Batch:
        """See `HasProbe`: an image of random bytes, whose class follows from its number."""
        settings = self.settings
        pixels = draw_integers("probe pixels 1", (number,), settings.values + 1) % 256
        label = number % max(1, len(settings.classes))
        stored = label.to_bytes(settings.label_bytes, "little") + bytes(pixels.tolist())
        return self.batch([StoredSample(stored, number, 0, heldout=True)])

    def loss(self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> Loss:
        """Return the sum of squared errors over all values of all pixels."""
        predicted = model(batch["noisy"], batch["times"], batch.get("labels")).float()
        return Loss((predicted - batch["noise"]).square().sum(), predicted.numel())

    def _draw(self, sample: StoredSample) -> tuple[int, np.ndarray]:
        """Return a sample's step and its noise, (values,)."""
        key = (self.manifest.seed, sample.round, sample.number, int(sample.heldout))
        # 2³² is so much larger than the number of steps that none is noticeably more frequent.
        step = int(draw_integers("diffusion step 1", key, 1)[0]) % self.settings.steps
        return step, draw_normal("diffusion noise 1", key, self.settings.values)

    def _checked(self, labels: np.ndarray) -> np.ndarray:
        if labels.size and int(labels.max()) >= len(self.settings.classes):
            raise TrainerFailed(
                "bad_data",
                f"the training data cannot be read: class {int(labels.max())} of "
                f"{len(self.settings.classes)}",
            )
        return labels

    def _check_model(self, config: PretrainedConfig) -> None:
        if not isinstance(config, DenoiserConfig):
            raise _bad(f"it cannot train a {config.model_type!r}, which is not an image model")
        settings = self.settings
        for key, value in (
            ("sample_size", settings.size),
            ("in_channels", settings.channels),
            ("out_channels", settings.channels),
            ("num_class_embeds", len(settings.classes) or None),
        ):
            if config.network.get(key) != value:
                raise _bad(
                    f"the model's {key} is {config.network.get(key)}, but the images have {value}"
                )


def read_images(settings: PixelSettings, samples: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the classes in stored samples, int64 (count,), 0 if there are no classes,
    and the images, uint8 (count, channels, size, size)."""
    # A sample is one byte longer than an image with its class: the last byte is the next image's.
    row = (len(samples), settings.sample_bytes + 1)
    stored = np.frombuffer(b"".join(samples), np.uint8).reshape(row)
    end = settings.label_bytes
    labels = (stored[:, :end].astype(np.int64) * 256 ** np.arange(end)).sum(1)
    shape = (len(samples), settings.size, settings.size, settings.channels)
    return labels, stored[:, end : end + settings.values].reshape(shape).transpose(0, 3, 1, 2)


def check_image_data(data: DataSpec, settings: PixelSettings) -> None:
    """Raise `TrainerFailed` (`bad_model`) unless a manifest's data is images of these settings."""
    plain = not data.marked and data.attention == "sequence" and data.end_token is None
    if data.token_bytes != 1 or data.vocabulary != 256 or not plain:
        raise _bad("its data must be bytes, without documents and marked tokens")
    if data.sequence_length != settings.sample_bytes:
        raise _bad(
            f"a sample has {data.sequence_length} bytes, but an image has {settings.sample_bytes}"
        )


def _bad(problem: str) -> TrainerFailed:
    return TrainerFailed("bad_model", f"the manifest's task cannot be used: {problem}")
