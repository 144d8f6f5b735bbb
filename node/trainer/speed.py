"""How fast a device could be, and what a sequence takes of it: for the utilisation that a node tells.

Model FLOPs utilisation (Chowdhery et al., arXiv 2204.02311, appendix B) is what the model needs a
second, over what the device can do. Here the former is counted by torch, layer by layer, and the latter
is what a large matrix product reaches on this device, in the precision that training uses there: a
figure that holds for whatever device there is, and that is below what its maker prints.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from ...protocol.wire.manifest import Manifest
from .denoisers import Denoiser
from .device import narrow_type, synchronize
from .model import lay_out

_log = logging.getLogger(__name__)

# The side of the matrices: large enough to keep the device busy, a moment's work.
_SIDES = {"cuda": 8192, "cpu": 768}
_OTHER_SIDE = 4096
_TRIES = 4


def sequence_flops(manifest: Manifest) -> int | None:
    """Floating-point operations of a sequence's gradient, forward and backward, without what is computed
    twice to save memory; None for a model that cannot be counted."""
    try:
        model = lay_out(manifest.model)
        if manifest.adapter is not None:
            # Frozen weights take part in both directions, and no gradient of theirs is computed.
            model.requires_grad_(False)
            model.get_input_embeddings().requires_grad_(True)
        with FlopCounterMode(display=False) as counter:
            _output(model, manifest).sum().backward()
    # A stranger's model, in a library's code, for a figure that nothing depends on.
    except Exception as error:
        _log.info("the model's operations cannot be counted: %s", error)
        return None
    return counter.get_total_flops() or None


def reached_flops(device: torch.device) -> float | None:
    """Floating-point operations a second of a large matrix product on this device, in the precision of
    training there; the best of a few."""
    side = _SIDES.get(device.type, _OTHER_SIDE)
    precision = narrow_type(device) or torch.float32
    try:
        factor = torch.ones(side, side, dtype=precision, device=device)
        seconds = min(_product_seconds(factor) for _ in range(_TRIES))
    # There may be no room for it, which training goes without as well.
    except RuntimeError as error:
        _log.info("the device's speed cannot be measured: %s", error)
        return None
    return 2 * side**3 / seconds if seconds > 0 else None


def _output(model: PreTrainedModel, manifest: Manifest) -> torch.Tensor:
    nowhere: Any = {"device": "meta"}
    if isinstance(model, Denoiser):
        network: Any = model.unet.config
        images = (1, network.in_channels, network.sample_size, network.sample_size)
        step = torch.zeros(1, dtype=torch.int64, **nowhere)
        labels = None if network.num_class_embeds is None else step
        return model(torch.zeros(images, **nowhere), step, labels)
    tokens = torch.zeros(1, manifest.data.sequence_length, dtype=torch.int64, **nowhere)
    # Without a cache the library looks for documents within the tokens, and there are none to look at.
    return model(input_ids=tokens, use_cache=True).logits


def _product_seconds(factor: torch.Tensor) -> float:
    synchronize(factor.device)
    started = time.perf_counter()
    # Read back, a product is done on whatever device.
    (factor @ factor)[0, 0].item()
    return time.perf_counter() - started
