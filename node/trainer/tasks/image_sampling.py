"""Image sampling: the model turns noise into images, step by step.

The initial noise follows from the seed and the image's number, and nothing is drawn afterwards (Song
et al., arXiv 2010.02502, with η = 0): the same seed reproduces the same images.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from ...training.errors import TrainerFailed
from ...training.task_names import ImageSettings
from ..models.denoisers import noise_schedule
from ..training_session import TrainingSession
from .image_tasks import Diffusion
from .seeded_random import draw_normal


def draw_images(session: TrainingSession, count: int, seed: int, steps: int) -> Iterator[bytes]:
    """Yield `count` images, each size × size × channels bytes, made in `steps` steps, but at most in as
    many as the noise schedule has. If there are classes, image i is of class i modulo their number.

    Raises `TrainerFailed` (`bad_data`) if the swarm does not learn from images.
    """
    task = session.task
    if not isinstance(task, Diffusion):
        raise TrainerFailed("bad_data", "this swarm does not learn from images")
    return _draw(session, task, count, seed, steps)


def _draw(
    session: TrainingSession, task: Diffusion, count: int, seed: int, steps: int
) -> Iterator[bytes]:
    for start in range(0, count, session.micro_batch):
        numbers = range(start, min(count, start + session.micro_batch))
        yield from draw_together(
            session.model, task.settings, numbers, seed=seed, steps=steps, device=session.device
        )


@torch.no_grad()
def draw_together(
    model: PreTrainedModel,
    settings: ImageSettings,
    numbers: range,
    *,
    seed: int,
    steps: int,
    device: torch.device,
) -> list[bytes]:
    """Return the images of these numbers, as `draw_images` does, in one batch."""
    from diffusers.schedulers.scheduling_ddim import DDIMScheduler

    model.eval()
    # Steps are counted back from the schedule's last one, so that sampling always starts at pure noise.
    schedule: Any = DDIMScheduler.from_config(
        noise_schedule(settings).config, timestep_spacing="trailing"
    )
    schedule.set_timesteps(min(steps, settings.steps))
    shape = (len(numbers), settings.channels, settings.size, settings.size)
    noise = np.stack(
        [draw_normal("diffusion image 1", (seed, i), settings.values) for i in numbers]
    )
    images = torch.from_numpy(noise).reshape(shape).to(device)
    labels = None
    if settings.classes:
        classes = [number % len(settings.classes) for number in numbers]
        labels = torch.tensor(classes, device=device)
    for step in schedule.timesteps:
        times = torch.full((len(numbers),), int(step), device=device)
        predicted = model(images, times, labels).float()
        images = schedule.step(predicted, step, images).prev_sample
    # A value that is NaN becomes black, so that there is an image all the same.
    values = torch.nan_to_num(images.cpu(), nan=-1.0).clamp(-1, 1)
    pixels = ((values + 1) * 127.5).round().to(torch.uint8)
    return [image.permute(1, 2, 0).contiguous().numpy().tobytes() for image in pixels]
