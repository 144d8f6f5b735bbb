"""Models that tell noise from images: a U-Net of `diffusers`, and how it is read, written and asked.

It wears the coat that transformers has for models of one's own, so that what lays out, counts and trains
a model deals with one kind. The configuration is a stranger's, and `architectures` has checked it. The
library is loaded for swarms that train such a model alone: that takes seconds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import PretrainedConfig, PreTrainedModel

from .errors import TrainerFailed
from .task_names import ImageSettings

UNET = "unet"
"""The folder of an export that has the model, as pipelines of the library want it."""
SCHEDULER = "scheduler"
WEIGHTS_NAME = "diffusion_pytorch_model.safetensors"

# What the linear schedule begins and ends with where it has so many steps (Ho et al., arXiv 2006.11239);
# with fewer each adds more, so that nothing but noise is left at the end all the same. The cosine one
# (Nichol and Dhariwal, arXiv 2102.09672) needs no such numbers.
_LINEAR_STEPS, _FIRST, _LAST = 1000, 1e-4, 0.02


class DenoiserConfig(PretrainedConfig):
    """The configuration of a denoiser: `network` is what the library is given."""

    model_type = "unet2d"

    def __init__(self, network: dict[str, Any] | None = None, **rest: Any) -> None:
        self.network = dict(network or {})
        super().__init__(**rest)


class Denoiser(PreTrainedModel):
    """A network that says what the noise in an image is."""

    config_class = DenoiserConfig
    main_input_name = "noisy"

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__(config)
        from diffusers.models.unets.unet_2d import UNet2DModel

        self.unet = UNet2DModel(**config.network)

    def forward(
        self, noisy: torch.Tensor, times: torch.Tensor, labels: torch.Tensor | None
    ) -> torch.Tensor:
        """The noise in images (count, channels, height, width) at these steps, (count,); of these
        classes, where the model knows any: the same shape."""
        return self.unet(noisy, times, class_labels=labels).sample


def load_library() -> None:
    """Load it now, outside whatever has bounds of time and memory. Raises `TrainerFailed`
    (`no_task`)."""
    try:
        import diffusers.models.unets.unet_2d  # noqa: F401  (to have it loaded)
    except ImportError as error:
        raise TrainerFailed(
            "no_task", f"the package diffusers, which models of images need, is not here: {error}"
        ) from None


def noise_schedule(settings: ImageSettings) -> Any:
    """The library's schedule: how much of an image is left at each step, and how it is got back."""
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
    """Write the model and its schedule so that the library opens them; without classes the directory is
    a pipeline of it. Raises what a full disk raises."""
    import diffusers

    model.unet.save_pretrained(directory / UNET, safe_serialization=True)
    noise_schedule(settings).save_pretrained(directory / SCHEDULER)
    if not settings.classes:
        # Its one pipeline for such models asks for no class.
        index = {
            "_class_name": "DDPMPipeline",
            "_diffusers_version": diffusers.__version__,
            SCHEDULER: ["diffusers", "DDPMScheduler"],
            UNET: ["diffusers", "UNet2DModel"],
        }
        (directory / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")


def read_denoiser(directory: Path, model: Denoiser) -> None:
    """Put the weights of an export into a model of the manifest's configuration. Raises `TrainerFailed`
    (`bad_model`)."""
    path = directory / UNET / WEIGHTS_NAME
    try:
        found = load_file(path)
    except OSError as error:
        raise _bad(f"{path.name} cannot be read ({error.strerror or error})") from None
    # The library has an exception of its own for each way in which a file is none of its own.
    except Exception as error:
        reason = (str(error).splitlines() or [repr(error)])[0][:200]
        raise _bad(f"{path.name} cannot be read ({reason})") from None
    with torch.no_grad():
        for name, parameter in model.unet.named_parameters():
            tensor = found.pop(name, None)
            if tensor is None or tensor.shape != parameter.shape or tensor.dtype != torch.float32:
                raise _bad(f"{path.name} lacks {name} {tuple(parameter.shape)}")
            parameter.copy_(tensor)
    if found:
        raise _bad(f"{path.name} has too much: {next(iter(found))[:200]}")


def written_config(model: Denoiser) -> dict[str, Any]:
    """What `config.json` says of a model, but for what the library says of itself."""
    # As it is read back: tuples are lists there.
    return named_keys(json.loads(model.unet.to_json_string()))


def named_keys(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration without the keys that say how it was written."""
    return {key: value for key, value in config.items() if not key.startswith("_")}


def _bad(problem: str) -> TrainerFailed:
    return TrainerFailed("bad_model", problem)
