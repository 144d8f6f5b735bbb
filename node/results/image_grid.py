"""A grid of images from the model, as one PNG file.

As in `generate`, the state is reconstructed in a process of its own, and a training node is not
disturbed.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from ...protocol.wire.manifest import SwarmId
from ..errors import ExitCode, UserError
from ..settings.tree import NEWEST, StateSelector
from ..storage.atomic_write import write_output
from ..storage.data_dir import DataDir
from ..storage.disk_faults import not_writable
from ..training.task_names import DIFFUSION, ImageSettings, require_task
from ..util.progress import ShowProgress, show_nothing
from .saved_state import image_settings, read_swarm, reconstructed

# Images per row; with more classes the columns no longer show the class.
_MAX_COLUMNS = 16
# Pixels between two images, and around all.
_GAP = 2
_GAP_SHADE = 128
# Small images are enlarged to at least this size by repeating pixels.
_SHOWN_SIZE = 64


@dataclass(frozen=True, kw_only=True)
class GridSettings:
    """What to draw, from which state, and where to write it."""

    swarm: SwarmId
    data_dir: Path
    to: Path
    selector: StateSelector = NEWEST
    count: int = 16
    """Number of images."""
    steps: int = 50
    """Denoising steps per image."""
    seed: int = 0
    threads: int = 1
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class ImageGrid:
    """The result of `draw_grid`."""

    round: int
    columns: int
    classes: tuple[str, ...]
    """The class in each column; empty if there are no classes, or more of them than columns."""


async def draw_grid(settings: GridSettings, progress: ShowProgress = show_nothing) -> ImageGrid:
    """Draw images and write them to a file.

    Raises `UserError`: `USAGE` if the swarm does not learn from images or the destination is no file
    name in an existing directory, `NOT_WRITABLE` or `DISK_FULL` if it cannot be written, and what
    `reconstructed` raises.
    """
    stored = await read_swarm(DataDir(settings.data_dir), settings.swarm)
    images = image_settings(stored.manifest)
    if images is None:
        raise UserError(
            ExitCode.USAGE,
            f"this swarm trains the task {stored.manifest.task!r}: there are no images to draw",
            "leave --grid out",
        )
    require_task(DIFFUSION)
    # The destination is checked first, because drawing takes minutes.
    if settings.to.is_dir() or not settings.to.parent.is_dir():
        problem = (
            "is a directory" if settings.to.is_dir() else "is in a directory that does not exist"
        )
        raise UserError(ExitCode.USAGE, f"{settings.to} {problem}", "name a file with --grid")
    pixels = []
    async with reconstructed(
        stored,
        settings.selector,
        threads=settings.threads,
        device=settings.device,
        progress=progress,
    ) as state:
        await state.trainer.begin_images(settings.count, seed=settings.seed, steps=settings.steps)
        drawing = "drawing the images"
        progress(drawing, 0, settings.count)
        while (image := await state.trainer.next_image()) is not None:
            pixels.append(image)
            progress(drawing, len(pixels), settings.count)
        round_ = state.round
    columns = columns_for(len(pixels), images)
    sheet = png(pixels, images, columns)
    try:
        await trio.to_thread.run_sync(write_output, settings.to, sheet)
    except OSError as error:
        raise not_writable(error, settings.to, "--grid") from None
    classes = images.classes if len(images.classes) == columns else ()
    return ImageGrid(round=round_, columns=columns, classes=classes)


def columns_for(count: int, settings: ImageSettings) -> int:
    """Return the number of images per row: one per class if these are few, else as in a square."""
    if 1 < len(settings.classes) <= _MAX_COLUMNS:
        return len(settings.classes)
    return min(_MAX_COLUMNS, math.ceil(math.sqrt(count)))


def png(images: list[bytes], settings: ImageSettings, columns: int) -> bytes:
    """Return a PNG file with the images, of size × size × channels bytes each, on a grid, row by row."""
    image: Any = _library()
    mode = "L" if settings.channels == 1 else "RGB"
    scale = max(1, _SHOWN_SIZE // settings.size)
    side = settings.size * scale
    rows = -(-len(images) // columns)
    extent = (columns * (side + _GAP) + _GAP, rows * (side + _GAP) + _GAP)
    sheet = image.new(mode, extent, (_GAP_SHADE,) * settings.channels)
    for number, data in enumerate(images):
        picture = image.frombytes(mode, (settings.size, settings.size), data)
        row, column = divmod(number, columns)
        position = (_GAP + column * (side + _GAP), _GAP + row * (side + _GAP))
        sheet.paste(picture.resize((side, side), image.Resampling.NEAREST), position)
    file = io.BytesIO()
    sheet.save(file, "PNG")
    return file.getvalue()


def _library() -> Any:
    require_task(DIFFUSION)
    import PIL.Image

    return PIL.Image
