"""Models that predict the noise in images: a U-Net of `diffusers`, with its reading, writing and
schedule.

The U-Net is wrapped as a custom model of transformers, so that the code that builds, counts and trains
models handles one kind of model. The configuration is a stranger's, and `architectures` has checked it.
Only swarms that train such a model load the library, because that takes seconds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import PretrainedConfig, PreTrainedModel

from ...training.errors import TrainerFailed
from ...training.task_names import ImageSettings
from ...util.first_line import first_line

UNET = "unet"
"""The folder of an export that contains the model, as the library's pipelines expect."""
SCHEDULER = "scheduler"
INDEX_NAME = "model_index.json"
SCHEDULER_CONFIG_NAME = f"{SCHEDULER}/scheduler_config.json"
VERSION_KEY = "_diffusers_version"
_PLACE_KEY = "_name_or_path"
WEIGHTS_NAME = "diffusion_pytorch_model.safetensors"

# The linear schedule begins and ends with these values if it has 1,000 steps (Ho et al., arXiv
# 2006.11239). With fewer steps each adds proportionally more, so that the end is still pure noise. The
# cosine schedule (Nichol and Dhariwal, arXiv 2102.09672) needs no such numbers.
_LINEAR_STEPS, _FIRST, _LAST = 1000, 1e-4, 0.02


class DenoiserConfig(PretrainedConfig):
    """The configuration of a denoiser; `network` holds the library's own arguments."""

    model_type = "unet2d"

    def __init__(self, network: dict[str, Any] | None = None, **rest: Any) -> None:
        self.network = dict(network or {})
        super().__init__(**rest)


class Denoiser(PreTrainedModel):
    """A network that predicts the noise in an image."""

    config_class = DenoiserConfig
    main_input_name = "noisy"

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__(config)
        from diffusers.models.unets.unet_2d import UNet2DModel

        self.unet = UNet2DModel(**config.network)

    def forward(
        self, noisy: torch.Tensor, times: torch.Tensor, labels: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the noise in images (count, channels, height, width) at the steps `times`,
        (count,), for the classes `labels` if the model has classes: the same shape as the images."""
        return self.unet(noisy, times, class_labels=labels).sample


def load_library() -> None:
    """Load the library now, outside of any limit of time and memory. Raises `TrainerFailed`
    (`no_task`)."""
    try:
        import diffusers.models.unets.unet_2d  # noqa: F401  (to have it loaded)
    except ImportError as error:
        raise TrainerFailed(
            "no_task",
            f"the package diffusers, which models of images need, cannot be imported: {error}",
        ) from None


def noise_schedule(settings: ImageSettings) -> Any:
    """Return the library's noise schedule: how much of an image remains at each step, and how the image
    is recovered."""
    from diffusers.schedulers.scheduling_ddpm import DDPMScheduler

    scale = _LINEAR_STEPS / settings.steps
    return DDPMScheduler(
        num_train_timesteps=settings.steps,
        beta_schedule="squaredcos_cap_v2" if settings.schedule == "cosine" else "linear",
        beta_start=_FIRST * scale,
        beta_end=_LAST * scale,
        prediction_type="epsilon",
        clip_sample=True,
    )


def write_denoiser(model: Denoiser, settings: ImageSettings, directory: Path) -> None:
    """Write the model and its schedule in the library's format; for images without classes the directory
    is a pipeline of the library. Raises whatever the library raises when the disk is full."""
    import diffusers

    model.unet.save_pretrained(directory / UNET, safe_serialization=True)
    noise_schedule(settings).save_pretrained(directory / SCHEDULER)
    index = pipeline_index(settings)
    if index is not None:
        index |= {VERSION_KEY: diffusers.__version__}
        (directory / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n")


def pipeline_index(settings: ImageSettings) -> dict[str, Any] | None:
    """Return the contents, except the version, of the file that makes a directory a pipeline of the
    library; None for images with classes, because the only pipeline for such models takes no class."""
    if settings.classes:
        return None
    return {
        "_class_name": "DDPMPipeline",
        SCHEDULER: ["diffusers", "DDPMScheduler"],
        UNET: ["diffusers", "UNet2DModel"],
    }


def read_denoiser(directory: Path, model: Denoiser) -> None:
    """Read the weights of an export into a model of the manifest's configuration. Raises
    `TrainerFailed` (`bad_model`)."""
    path = directory / UNET / WEIGHTS_NAME
    try:
        found = load_file(path)
    except OSError as error:
        raise _bad(f"{path.name} cannot be read ({error.strerror or error})") from None
    # The library has a separate exception for each way in which a file is invalid.
    except Exception as error:
        reason = first_line(error, empty=repr(error))
        raise _bad(f"{path.name} cannot be read ({reason})") from None
    with torch.no_grad():
        for name, parameter in model.unet.named_parameters():
            tensor = found.pop(name, None)
            if tensor is None or tensor.shape != parameter.shape or tensor.dtype != torch.float32:
                raise _bad(f"{path.name} lacks {name} {tuple(parameter.shape)}")
            parameter.copy_(tensor)
    if found:
        raise _bad(f"{path.name} has an unknown tensor: {next(iter(found))[:200]}")


def written_config(model: Denoiser) -> dict[str, Any]:
    """Return the contents of a model's `config.json`, without what the library writes about itself."""
    # The values are as they would be read back: tuples become lists.
    return without_origin(json.loads(model.unet.to_json_string()))


def without_origin(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration without the keys that record how it was written. Other keys that begin
    with `_` have an effect: one lists keys whose values the library replaces by its defaults."""
    return {key: value for key, value in config.items() if key not in (VERSION_KEY, _PLACE_KEY)}


def _bad(problem: str) -> TrainerFailed:
    return TrainerFailed("bad_model", problem)
