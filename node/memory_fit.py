"""The memory that each way to train a swarm's model needs, and which ways fit: `distro-node fit`.

It uses the same arithmetic by which a trainer chooses a way when it starts (`training/memory_plan.py`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio

from ..protocol.wire.manifest import Manifest
from ..protocol.wire.swarm_id import Invite
from .content.manifest_search import ManifestSearch, read_manifest
from .errors import UserError
from .network.discovery.introductions import Introducer
from .network.ephemeral_network import open_ephemeral_network
from .network.exchange.blobs import BlobFetcher
from .settings.components import Split
from .storage.blob_store import BlobStore
from .training.device_probe import Survey, survey
from .training.error_messages import explain_trainer
from .training.errors import TrainerDied, TrainerFailed
from .training.memory_model import Workload
from .training.memory_plan import FreeMemory, MemoryPlan, choices, in_shards, plan_line

__all__ = [
    "MemoryFit",
    "Survey",
    "Workload",
    "fetch_manifest",
    "fit_workload",
    "plan_line",
    "survey_device",
]


@dataclass(frozen=True, kw_only=True)
class MemoryFit:
    """The result: a workload, a device, and which ways to train fit."""

    name: str
    """The swarm's name; untrusted text."""
    elements: int
    """Number of trained parameters."""
    frozen: int
    """Number of further weights that are not trained."""
    device: str
    """Description of the device that would train, for display."""
    kind: str
    """cpu, cuda or mps."""
    devices: int
    """Number of devices that would train as one member."""
    shards: bool
    """Whether each of several devices would hold a shard of the model instead of a copy."""
    room: FreeMemory
    """Free memory of each GPU; CPUs share one memory."""
    choices: tuple[MemoryPlan, ...]
    """Every way to train, cheapest first."""
    audit_bytes: int
    """Bytes of main memory that must be free, on top of training, to audit others' work; with less this
    machine audits nothing. 0 in a swarm without audits."""
    aggregator_room: int
    """Bytes of main memory that must be free, on top of training, to aggregate the whole model in a
    swarm of one committee; with less this machine abstains. 0 in a swarm without committees."""

    @property
    def chosen(self) -> MemoryPlan | None:
        """The way to train that a trainer would choose; None: none fits."""
        return next((choice for choice in self.choices if choice.fits), None)

    @property
    def plan_to_show(self) -> MemoryPlan:
        """The chosen way, or else the one that lacks the least memory."""
        return self.chosen or min(self.choices, key=lambda choice: choice.needs.device)

    def plain(self) -> dict[str, Any]:
        """Return the result as a table for JSON."""
        return {
            "name": self.name,
            "parameters": self.elements,
            "frozen_parameters": self.frozen,
            "device": self.device,
            "kind": self.kind,
            "devices": self.devices,
            "shards": self.shards,
            "room": asdict(self.room),
            "fits": self.chosen is not None,
            "audit_bytes": self.audit_bytes,
            "aggregator_room": self.aggregator_room,
            "choices": [
                {
                    **asdict(choice.options.state),
                    "checkpointing": choice.options.checkpointing,
                    "micro_batch": choice.micro_batch,
                    "device_bytes": choice.needs.device,
                    "host_bytes": choice.needs.host,
                    "fits": choice.fits,
                    "chosen": choice is self.chosen,
                    "parts": [asdict(part) for part in choice.needs.parts],
                }
                for choice in self.choices
            ],
        }


async def survey_device(
    device: str, config: dict[str, Any] | None = None, lora: dict[str, Any] | None = None
) -> Survey:
    """Return the `survey` of a device; failures of its trainer process become `UserError`."""
    try:
        return await survey(device, config, lora)
    except (TrainerFailed, TrainerDied) as error:
        raise explain_trainer(error) from None


async def fetch_manifest(invite: Invite, listen: tuple[str, ...] = ()) -> Manifest:
    """Fetch a swarm's manifest from any peer that has it. Raises the `UserError` of the search for
    it."""
    with TemporaryDirectory(prefix="distro-node-fit-") as folder:
        async with (
            open_ephemeral_network(invite.bootstrap, listen) as (network, identity),
            trio.open_nursery() as nursery,
        ):
            introducer = Introducer(network, identity, invite.swarm, invite.bootstrap)
            nursery.start_soon(introducer.run)
            fetcher = BlobFetcher(network, BlobStore(Path(folder)))
            search = ManifestSearch(
                lambda: list(network.connected()), introducer, fetcher, lambda *_: None
            )
            try:
                data = await search.manifest(invite.swarm, wait=False)
                found = read_manifest(data, invite.swarm)
            except UserError as error:
                # Raised below, since a nursery would wrap it in a group.
                found = error
            nursery.cancel_scope.cancel()
    if isinstance(found, UserError):
        raise found
    return found


def fit_workload(
    name: str,
    work: Workload,
    device: Survey,
    memory: int | None = None,
    micro_batch: int | None = None,
    split: Split = Split.AUTO,
) -> MemoryFit:
    """Return how `work` fits on one device or several; `memory`, in bytes, replaces the free memory of a
    device that was measured. Raises `UserError` (`MANIFEST`) for a model that cannot be used."""
    room = FreeMemory(
        device=device.free_bytes if memory is None else memory, host=device.host_bytes
    )
    work = replace(work, ranks=device.count)
    try:
        if device.count > 1 and in_shards(work, device.kind, [room], micro_batch, split=split):
            work = replace(work, shards=True)
        every = tuple(choices(work, device.kind, room, micro_batch))
    except TrainerFailed as error:
        raise explain_trainer(error) from None
    return MemoryFit(
        name=name,
        elements=work.elements,
        frozen=work.frozen,
        device=device.device,
        kind=device.kind,
        devices=device.count,
        shards=work.shards,
        room=room,
        choices=every,
        audit_bytes=work.audit_bytes,
        aggregator_room=work.aggregator_room,
    )
