"""The device's speed and the cost of a sequence, for the utilisation that a node reports.

Model FLOPs utilisation (Chowdhery et al., arXiv 2204.02311, appendix B) is the operations per second
that the model needs, divided by those that the device can do. Here torch counts the former, layer by
layer. The latter is what a large matrix product reaches on this device, in the precision that
training uses there: this can be measured on any device, and is below the figure of its maker.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from ...protocol.wire.manifest import Manifest
from ..training.architectures import takes_images
from ..training.task_names import ImageClassSettings, built_in_settings, completions
from .device import narrow_type, synchronize
from .models.classifiers import is_classifier
from .models.denoisers import Denoiser
from .models.model import build_skeleton

_log = logging.getLogger(__name__)

# Sides of the matrices. They grow until a product keeps the device busy, or until the next one would
# take too long: a GPU and a driver that computes on the processor are five orders of magnitude apart.
_SMALLEST_SIDE = 192
_SIDES = {"cuda": 8192, "cpu": 768}
_OTHER_SIDE = 4096
_TRIES = 4
_LONGEST_SECONDS = 0.25


def sequence_flops(manifest: Manifest) -> int | None:
    """Return the floating-point operations of one sequence's gradient, forward and backward, without
    recomputation; None for a model that cannot be counted, and if completions are sampled, because their
    lengths are unknown."""
    if completions(manifest.task, manifest.task_settings):
        return None
    try:
        model = build_skeleton(manifest.model)
        if manifest.adapter is not None:
            # Frozen weights take part in both passes, but no gradient of them is computed.
            model.requires_grad_(False)
            model.get_input_embeddings().requires_grad_(True)
        with FlopCounterMode(display=False) as counter:
            _output(model, manifest).sum().backward()
    # A library computes a stranger's model here and may raise anything; nothing depends on the figure.
    except Exception as error:
        _log.info("the model's operations cannot be counted: %s", error)
        return None
    return counter.get_total_flops() or None


def matmul_flops(device: torch.device) -> float | None:
    """Return the floating-point operations per second of a large matrix product on this device, in
    the precision of training there; the best of a few. None if it cannot be measured."""
    largest = _SIDES.get(device.type, _OTHER_SIDE)
    precision = narrow_type(device) or torch.float32
    side, best = _SMALLEST_SIDE, 0.0
    try:
        while True:
            factor = torch.ones(side, side, dtype=precision, device=device)
            seconds = min(_product_seconds(factor) for _ in range(_TRIES))
            if seconds > 0:
                best = max(best, 2 * side**3 / seconds)
            larger = min(2 * side, largest)
            if side == larger or seconds * (larger / side) ** 3 > _LONGEST_SECONDS:
                break
            side = larger
    # There may be no memory for the product; training goes on without the figure.
    except RuntimeError as error:
        _log.info("the device's speed cannot be measured: %s", error)
    return best or None


def _output(model: PreTrainedModel, manifest: Manifest) -> torch.Tensor:
    nowhere: Any = {"device": "meta"}
    if isinstance(model, Denoiser):
        network: Any = model.unet.config
        images = (1, network.in_channels, network.sample_size, network.sample_size)
        step = torch.zeros(1, dtype=torch.int64, **nowhere)
        labels = None if network.num_class_embeds is None else step
        return model(torch.zeros(images, **nowhere), step, labels)
    if is_classifier(model.config) and takes_images(model.config.model_type):
        settings = built_in_settings(manifest.task, manifest.task_settings)
        assert isinstance(settings, ImageClassSettings)
        shape = (1, settings.channels, settings.size, settings.size)
        return model(pixel_values=torch.zeros(shape, **nowhere)).logits
    tokens = torch.zeros(1, manifest.data.sequence_length, dtype=torch.int64, **nowhere)
    if is_classifier(model.config):
        # The first number of a sample is its class.
        return model(input_ids=tokens[:, 1:]).logits
    # Without a cache the library searches the tokens for packed documents, which fails because tokens
    # on the `meta` device have no values.
    return model(input_ids=tokens, use_cache=True).logits


def _product_seconds(factor: torch.Tensor) -> float:
    synchronize(factor.device)
    started = time.perf_counter()
    # Once it is read back, the product is complete on any device.
    (factor @ factor)[0, 0].item()
    return time.perf_counter() - started
