"""Models that name the class of a sample: their head, their batch normalisation, their label names.

Batch normalisation. A ResNet normalises each channel by running statistics, which are no parameters:
members that each counted their own would compute different models. So a normalisation here only scales
and shifts a channel. Its statistics are fixed to the mean 0 and the variance 1, in training too, and
those of a checkpoint are folded into its weight and bias, which gives the same function. Exports have
these fixed statistics, so that any program computes what the members trained.

A new ResNet starts without normalisation, so every residual branch starts as zero: its last weight does
(De and Smith, arXiv 2002.10444). Otherwise the signal would grow with each layer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from ....protocol.wire.manifest import Manifest
from ....protocol.wire.structure import StructureError
from ...training.errors import TrainerFailed
from ...training.task_names import ImageClassSettings, class_names

PROBLEM_TYPE = "single_label_classification"
"""The library's name for choosing one of several classes."""
PREPROCESSOR_NAME = "preprocessor_config.json"

# The names of a head's parameters, and those of the pooler below it, which pretraining may lack.
_HEAD = re.compile(r"^(classifier|bert\.pooler)\.")
# The heads of pretraining, which a classifier replaces.
_OTHER_HEAD = re.compile(r"^(cls|lm_head)\.")
# The library's number for the filter that `create` scales images with (Lanczos).
_LANCZOS = 1


class FixedBatchNorm(torch.nn.BatchNorm2d):
    """A batch normalisation that never counts statistics: it is always in the mode of evaluation."""

    def train(self, mode: bool = True) -> FixedBatchNorm:
        """Ignore the mode."""
        return super().train(False)


def is_classifier(config: PretrainedConfig) -> bool:
    """Whether `model_config` made this configuration for a classifier."""
    return getattr(config, "problem_type", None) == PROBLEM_TYPE


def fix_normalisation(model: PreTrainedModel) -> None:
    """Fix the statistics of batch normalisations to mean 0 and variance 1, and fold those that the model
    has into weights and biases. Running it again changes nothing.

    Raises `TrainerFailed` (`bad_model`) for statistics that are not finite, or a negative variance.
    """
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.BatchNorm2d):
            continue
        module.__class__ = FixedBatchNorm
        module.eval()
        mean, variance = module.running_mean, module.running_var
        if mean is None or variance is None or mean.is_meta:
            continue
        if bool((mean == 0).all() & (variance == 1).all()):
            continue
        if not (torch.isfinite(mean).all() and torch.isfinite(variance).all()):
            raise _bad(f"the statistics of {name} are not finite")
        if bool((variance < 0).any()):
            raise _bad(f"the variance of {name} is negative")
        with torch.no_grad():
            # In float64, so that only the rounding of the result is left.
            scale = ((1 + module.eps) / (variance.double() + module.eps)).sqrt()
            shift = mean.double() * module.weight.double() / (variance.double() + module.eps).sqrt()
            module.bias.copy_(module.bias.double() - shift)
            module.weight.copy_(module.weight.double() * scale)
            mean.zero_()
            variance.fill_(1.0)
            if module.num_batches_tracked is not None:
                module.num_batches_tracked.zero_()


@torch.no_grad()
def start_branches_at_zero(model: PreTrainedModel) -> None:
    """Set the last weight of every residual branch of a new ResNet to zero."""
    if model.config.model_type != "resnet":
        return
    for module in model.modules():
        branch = getattr(module, "layer", None)
        if hasattr(module, "shortcut") and isinstance(branch, torch.nn.Sequential):
            last: Any = branch[-1]
            last.normalization.weight.zero_()


def drawn_anew(names: Collection[str]) -> list[str]:
    """Return which of these parameters are a classifier's head, which a checkpoint of another task or
    with other classes does not have."""
    return [name for name in names if _HEAD.search(name)]


def of_other_head(name: str) -> bool:
    """Whether a checkpoint's tensor is part of the head of its pretraining."""
    return _OTHER_HEAD.search(name) is not None


def set_class_names(config: PretrainedConfig, manifest: Manifest) -> None:
    """Write the names of a manifest's classes into its model's configuration, if it has any, as exports
    state them.

    Raises `TrainerFailed` (`bad_model`) if their number is not the model's.
    """
    try:
        names = class_names(manifest.task, manifest.task_settings)
    except StructureError as error:
        raise _bad(f"the manifest's task cannot be used: {error}") from None
    if not names:
        return
    if not is_classifier(config) or config.num_labels != len(names):
        wanted = config.num_labels if is_classifier(config) else "no"
        raise _bad(f"the model tells {wanted} classes apart, but the task has {len(names)}")
    # Two names may be equal in a configuration of strangers; here they are distinct.
    config.id2label = dict(enumerate(names))
    config.label2id = {name: number for number, name in enumerate(names)}


def preprocessing(settings: ImageClassSettings) -> dict[str, Any]:
    """Return the contents of `preprocessor_config.json`: what `create` does to an image, and the
    values that the model is given."""
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": settings.channels == 3,
        "do_resize": True,
        "size": {"shortest_edge": settings.size},
        "resample": _LANCZOS,
        "do_center_crop": True,
        "crop_size": {"height": settings.size, "width": settings.size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": channel_numbers(settings.mean, settings.channels),
        "image_std": channel_numbers(settings.std, settings.channels),
    }


def channel_numbers(numbers: Sequence[float], channels: int) -> list[float]:
    """Return one number for each channel."""
    return [*numbers] * (channels if len(numbers) == 1 else 1)


def write_preprocessing(settings: ImageClassSettings, directory: Path) -> None:
    """Write `preprocessor_config.json`."""
    text = json.dumps(preprocessing(settings), indent=2, sort_keys=True) + "\n"
    (directory / PREPROCESSOR_NAME).write_text(text, encoding="utf-8")


def _bad(problem: str) -> TrainerFailed:
    return TrainerFailed("bad_model", problem)
