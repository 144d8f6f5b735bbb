"""What devices are and have, asked of a trainer process: torch knows, and the node process has none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...protocol.wire.manifest import ParameterSpec
from .client import trainer_process


@dataclass(frozen=True)
class Survey:
    """A device, or several of one kind, and the parameter table of the model that was asked about."""

    kind: str
    """cpu, cuda or mps."""
    device: str
    """For people."""
    free_bytes: int
    """What a model may take there; of several GPUs on the one that has least."""
    host_bytes: int
    """Main memory that is free beside it; 0 on a processor."""
    parameters: tuple[ParameterSpec, ...]
    """Empty if no model was asked about."""
    count: int = 1
    """Of devices."""


async def survey(device: str = "auto", config: dict[str, Any] | None = None) -> Survey:
    """Ask about a device or a list of some, and about the model of a configuration.

    Raises `TrainerFailed` (`no_device`, `bad_model`) and `TrainerDied`.
    """
    async with trainer_process(None, ()) as client:
        answer = await client.survey(device=device, config=config)
    table = tuple(
        ParameterSpec(name=entry["name"], shape=tuple(entry["shape"]))
        for entry in answer.pop("parameters")
    )
    return Survey(**answer, parameters=table)
