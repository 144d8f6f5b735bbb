"""Survey of devices by a trainer process, since the node process has no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...protocol.wire.manifest import ParameterSpec
from .client import trainer_process


@dataclass(frozen=True)
class Survey:
    """A device, or several of one kind, and the parameter table of the model in question."""

    kind: str
    """cpu, cuda or mps."""
    device: str
    """The device's name, for people."""
    free_bytes: int
    """Memory that a model may take there; with several devices, on the one that has least."""
    host_bytes: int
    """Free main memory, if the device is a GPU; 0 on a CPU."""
    parameters: tuple[ParameterSpec, ...]
    """The trained parameters; empty if no model was given."""
    count: int = 1
    """Number of devices."""
    frozen: int = 0
    """Number of weights that are not trained: the base of adapters."""


async def survey(
    device: str = "auto",
    config: dict[str, Any] | None = None,
    lora: dict[str, Any] | None = None,
) -> Survey:
    """Survey a device or a list of devices, and the model of a configuration, with the adapters of
    `initialise_model`'s `lora`.

    Raises `TrainerFailed` (`no_device`, `bad_model`) and `TrainerDied`.
    """
    async with trainer_process(None, ()) as client:
        answer = await client.survey(device=device, config=config, lora=lora)
    table = tuple(
        ParameterSpec(name=entry["name"], shape=tuple(entry["shape"]))
        for entry in answer.pop("parameters")
    )
    return Survey(**answer, parameters=table)
