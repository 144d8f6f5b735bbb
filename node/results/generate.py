"""Text generation from a state of the model, reconstructed in a process of its own.

The node may train meanwhile. It is neither queried nor changed: the state comes from the disk, and
the generating process has one thread by default and runs at a lower priority.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from ...protocol.wire.manifest import SwarmId
from ..errors import ExitCode, UserError
from ..settings.tree import NEWEST, StateSelector
from ..storage.data_dir import DataDir
from ..training.client import TrainerFailed
from ..training.task_names import CLASSIFICATION, DIFFUSION, MASKED_LM
from ..training.text_request import TextRequest
from ..util.progress import ShowProgress, show_nothing
from .saved_state import State, read_swarm, reconstructed


@dataclass(frozen=True, kw_only=True)
class GenerateSettings:
    """What to write, and from which state."""

    swarm: SwarmId
    data_dir: Path
    selector: StateSelector = NEWEST
    seed: int = 0
    temperature: float = 0.8
    """0: always the likeliest token."""
    top_p: float = 1.0
    """Tokens are drawn among the likeliest that together have this probability."""
    max_tokens: int = 200
    threads: int = 1
    device: str = "cpu"


class Writer:
    """A state of the model that generates text."""

    def __init__(self, state: State, settings: GenerateSettings) -> None:
        self.round = state.round
        manifest = state.stored.manifest
        self.continues = not manifest.data.trains_on_conversations and manifest.task != MASKED_LM
        """Whether its text continues the prompt; otherwise it is an answer."""
        self._trainer = state.trainer
        self._settings = settings

    async def write(self, prompt: str, show: Callable[[str], None]) -> None:
        """Pass the text after `prompt` to `show`, piece by piece.

        Raises `UserError` (`USAGE`) for a prompt that the model cannot take; the writer can be used
        with another prompt after that.
        """
        settings = self._settings
        try:
            await self._trainer.begin_text(
                TextRequest(
                    prompt=prompt,
                    seed=settings.seed,
                    temperature=settings.temperature,
                    top_p=settings.top_p,
                    max_tokens=settings.max_tokens,
                )
            )
        except TrainerFailed as failure:
            if failure.kind != "bad_data":
                raise
            raise UserError(ExitCode.USAGE, str(failure), "give another prompt") from None
        while (piece := await self._trainer.next_text()) is not None:
            show(piece)


@asynccontextmanager
async def open_writer(
    settings: GenerateSettings, progress: ShowProgress = show_nothing
) -> AsyncIterator[Writer]:
    """Reconstruct the state and keep it ready. Raises `UserError`."""
    stored = await read_swarm(DataDir(settings.data_dir), settings.swarm)
    if stored.manifest.task in CLASSIFICATION:
        raise UserError(
            ExitCode.USAGE,
            "this swarm's model names the class of a sample, and generates nothing",
            "export it with `distro-node export`; see its accuracy with `distro-node status`",
        )
    if stored.manifest.task == DIFFUSION:
        raise UserError(
            ExitCode.USAGE,
            "this swarm learns from images, and its model generates no text",
            "use --grid FILE.png to generate images",
        )
    async with reconstructed(
        stored,
        settings.selector,
        threads=settings.threads,
        device=settings.device,
        progress=progress,
    ) as state:
        yield Writer(state, settings)
