"""A diffusion model of scikit-learn's digits in training.

1,797 images of 8 × 8 pixels come with scikit-learn (`pip install -e '.[diffusion,benchmark]'`); every
tenth is held out. The loss is the program's own task's: the squared error of the noise in a value of a
pixel.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import numpy as np
import torch
from distro_node.crypto.hashing import ContentId
from distro_node.crypto.identity import PeerId
from distro_node.node.create.model_config import complete_denoiser
from distro_node.node.trainer.models.model import model_config, new_model, parameter_table
from distro_node.node.trainer.tasks.image_tasks import Diffusion
from distro_node.node.trainer.tasks.task_batches import StoredSample
from distro_node.node.training.task_names import DIFFUSION, ImageSettings
from distro_node.protocol.wire.manifest import DataSpec, Manifest, ShardSpec
from distro_node.protocol.wire.structure import to_plain

from .trial import Setting, Trial

DIGITS = ImageSettings(size=8, channels=1, classes=tuple("0123456789"))
_BRIGHTEST = 16
_DRAWS = 4


@cache
def digits() -> np.ndarray:
    """Return the samples as the program stores them: uint8 (1797, 65), the class before each image."""
    try:
        # Used only by this benchmark: a type checker need not have it.
        from sklearn.datasets import load_digits  # pyright: ignore[reportMissingImports]
    except ImportError:
        sys.exit("the digits come with scikit-learn: pip install -e '.[diffusion,benchmark]'")

    found: Any = load_digits()
    pixels = np.round(found.data * (255 / _BRIGHTEST)).astype(np.uint8)
    return np.concatenate([found.target.astype(np.uint8)[:, None], pixels], axis=1)


class ImageTrial(Trial):
    """A small U-Net with classes."""

    gradient_bytes = 4

    # Nothing of a language model's is wanted.
    def __init__(self, setting: Setting, seed: int, images: np.ndarray) -> None:  # pyright: ignore[reportMissingSuperCall]
        self.setting, self.seed = setting, seed
        self.device = torch.device(setting.device)
        config = complete_denoiser(
            {
                "model_type": "unet2d",
                "block_out_channels": [setting.hidden, 2 * setting.hidden],
                "layers_per_block": setting.layers,
            },
            DIGITS,
        )
        torch.manual_seed(seed)
        self.model = new_model(model_config(config), self.device)
        self.table = parameter_table(self.model)
        self.parameters = [*self.model.parameters()]
        self.dense_bytes = float(self.gradient_bytes * self.elements)
        nowhere = ContentId(bytes(32))
        shard = ShardSpec(blob=nowhere, tokens=2 * DIGITS.sample_bytes)
        manifest = Manifest(
            name="digits",
            task=DIFFUSION,
            task_settings=to_plain(DIGITS, named=True),
            seed=seed,
            model=config,
            parameters=self.table,
            initial=nowhere,
            data=DataSpec(
                sequence_length=DIGITS.sample_bytes,
                token_bytes=1,
                vocabulary=256,
                shards=(shard,),
                heldout=shard,
                tokenizer=nowhere,
            ),
            founder=PeerId(bytes(32)),
        )
        self.task = Diffusion(manifest, self.model.config)
        held = np.arange(len(images)) % 10 == 9
        self._images = [image.tobytes() + b"\0" for image in images[~held]]
        self._heldout_images = [image.tobytes() + b"\0" for image in images[held]]

    def shares(self, number: int) -> list[np.ndarray]:
        """Return the numbers of the members' images: each image once in an epoch."""
        count, total = self.setting.members * self.setting.sequences, len(self._images)
        places = np.arange((number - 1) * count, number * count)
        epochs = {int(epoch): self._epoch(int(epoch)) for epoch in np.unique(places // total)}
        chosen = np.array([epochs[int(place // total)][place % total] for place in places])
        return np.split(chosen, self.setting.members)

    def loss(self, batch: np.ndarray, number: int) -> torch.Tensor:
        """Return the mean loss of some images, with the round's noise."""
        stored = [StoredSample(self._images[image], image, number) for image in batch.tolist()]
        found = self.task.loss(self.model, self.task.batch(stored))
        return found.total / found.count

    @torch.no_grad()
    def evaluate(self) -> float:
        """Return the held-out loss, over several draws of each image."""
        self.model.eval()
        total, values, count = 0.0, 0, len(self._heldout_images)
        for draw in range(_DRAWS):
            stored = [
                StoredSample(data, draw * count + number, 0, True)
                for number, data in enumerate(self._heldout_images)
            ]
            found = self.task.loss(self.model, self.task.batch(stored))
            total, values = total + float(found.total), values + found.count
        self.model.train()
        return total / values

    def _epoch(self, epoch: int) -> np.ndarray:
        return np.random.default_rng((self.seed, epoch)).permutation(len(self._images))
