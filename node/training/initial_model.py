"""Creation of a swarm's initial model in a trainer process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...protocol.wire.manifest import AdapterSpec, Manifest, ParameterSpec
from ...protocol.wire.structure import from_plain
from ...protocol.wire.work_specs import ProbeSpec
from .answers import InitialModel
from .client import trainer_process


async def initialise_model(
    config: dict[str, Any],
    seed: int,
    checkpoint: Path | None,
    blobs: Path,
    device: str = "auto",
    lora: dict[str, Any] | None = None,
    describe: Callable[[InitialModel], Manifest] | None = None,
    started: Callable[[], None] = lambda: None,
) -> InitialModel:
    """Create a swarm's initial parameters in a trainer process of its own.

    They are drawn from `seed`, or read from `checkpoint`, a Hugging Face directory with safetensors.
    With `lora` (`rank`, `alpha`, `targets`; no targets: all linear layers) the checkpoint is the
    base, and adapters are drawn. The chunks go into the store at `blobs`; the list is returned, not
    stored.

    `describe` makes a manifest from them; that manifest's data need not be stored yet. If it is given,
    the process then builds the model as members will, and computes the probe. `started` is called once
    the process has loaded its libraries.

    Raises `TrainerFailed`, `TrainerDied`, and what `describe` raises.
    """
    readable = () if checkpoint is None else (checkpoint,)
    async with trainer_process(None, (blobs,), readable) as client:
        await client.ready()
        started()
        answer = await client.initialise(
            config=config,
            seed=seed,
            checkpoint=None if checkpoint is None else str(checkpoint),
            lora=lora,
            blobs=str(blobs),
            device=device,
        )
        table = tuple(
            ParameterSpec(name=entry["name"], shape=tuple(entry["shape"]))
            for entry in answer["parameters"]
        )
        adapter = answer["adapter"]
        if adapter is not None:
            adapter = from_plain(AdapterSpec, adapter, named=True)
        initial = InitialModel(table, answer["blob_list"], answer["size"], adapter)
        if describe is None:
            return initial
        probe = await client.probe(describe(initial).encode(), blobs)
    return replace(
        initial, probe=None if probe is None else from_plain(ProbeSpec, probe, named=True)
    )
