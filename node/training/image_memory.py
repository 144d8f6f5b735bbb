"""Estimates of the memory that one image takes while a model computes its gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...protocol.wire.structure import StructureError
from .architectures import check_configuration, makes_images
from .errors import TrainerFailed

# Number of arrays that a block of a U-Net, with its attention, keeps for the backward pass. Each has
# the block's number of channels at the image size of its level.
_KEPT_BY_BLOCK = 10
# The same for a convolution of a ResNet: its output, normalised and activated, and a branch's sum.
_KEPT_BY_CONVOLUTION = 4
# Bytes that a layer of a vision transformer keeps for each token, by unit of its hidden and inner size,
# and by attention score: those of BERT, and the scores that some attention keeps.
_KEPT_BY_HIDDEN, _KEPT_BY_INNER, _KEPT_BY_SCORE = 40, 8, 12


def image_bytes(config: Mapping[str, Any], sample_bytes: int) -> int:
    """Estimate the bytes that one image in a micro-batch needs in addition to the model; a sample has
    `sample_bytes`. Raises `TrainerFailed` (`bad_model`) for a configuration that
    `check_configuration` refuses."""
    try:
        known = check_configuration(config)
    except StructureError as error:
        problem = f"the manifest's model cannot be used: {error}"
        raise TrainerFailed("bad_model", problem[:500]) from None
    if makes_images(known["model_type"]):
        return _of_denoiser(known)
    given = {key: value for key, value in known.items() if value is not None}
    if known["model_type"] == "vit":
        return _of_vision_transformer(given)
    return _of_resnet(given, sample_bytes)


def _of_denoiser(config: Mapping[str, Any]) -> int:
    levels, width = config["block_out_channels"], config["sample_size"]
    # Of each level: `layers_per_block` on the way down, and one more than that on the way up.
    blocks = 2 * config["layers_per_block"] + 1
    pixels = (channels * (width >> level) ** 2 for level, channels in enumerate(levels))
    return 4 * _KEPT_BY_BLOCK * blocks * sum(pixels)


def _of_vision_transformer(config: Mapping[str, Any]) -> int:
    hidden, layers = config.get("hidden_size", 768), config.get("num_hidden_layers", 12)
    inner, heads = config.get("intermediate_size", 3072), config.get("num_attention_heads", 12)
    tokens = (config.get("image_size", 224) // config.get("patch_size", 16)) ** 2 + 1
    token = (_KEPT_BY_HIDDEN * hidden + _KEPT_BY_INNER * inner) + _KEPT_BY_SCORE * heads * tokens
    return layers * tokens * token + 8 * tokens * (inner + hidden)


def _of_resnet(config: Mapping[str, Any], sample_bytes: int) -> int:
    widths = config.get("hidden_sizes", [256, 512, 1024, 2048])
    depths = config.get("depths", [3, 4, 6, 3])
    convolutions = 4 if config.get("layer_type", "bottleneck") == "bottleneck" else 3
    side = math.isqrt(max(1, sample_bytes // config.get("num_channels", 3)))
    # The first convolution and the pooling after it each halve the image.
    total = 2 * config.get("embedding_size", 64) * (side // 2 + 1) ** 2
    side = side // 4 + 1
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=False)):
        if stage or config.get("downsample_in_first_stage"):
            side = side // 2 + 1
        total += depth * convolutions * width * side**2
    return 4 * _KEPT_BY_CONVOLUTION * total
