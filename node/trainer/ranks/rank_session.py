"""Training of one model on several devices: the session of each of their processes.

It is a `TrainingSession` whose part of the model is a rank's (`ranks/part`). If the model fits, every
device has a copy to compute with, and keeps the optimizer's state of its own bands only. If it does
not fit, torch's FSDP2 (`fully_shard`) also leaves every device only its own bands of the parameters,
and gathers a layer when it is computed. Then no device ever holds the whole model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from accelerate import init_empty_weights
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import PreTrainedModel

from ....protocol.codec.update import manifest_layout
from ....protocol.wire.manifest import Manifest
from ...settings.components import Compile, Split
from ...storage.blob_store import BlobStore
from ...training.bands import unshardable_tensors
from ...training.local_policy import DEFAULT_POLICY, LocalPolicy
from ...training.memory_model import Workload
from ...training.memory_options import MemoryOptions
from ...training.memory_plan import FreeMemory, in_shards
from ..device import device_kind, free_memory, narrow_type
from ..memory.model_shard import ModelShard
from ..models.model import build_model, layers_of, model_config, new_model, ordered_parameters
from ..training_session import TrainingSession
from .momentum import MomentumDivision, RankPlace
from .part import RankPart
from .ranks import Ranks


class RankSession(TrainingSession):
    """A rank's session. All ranks must call the same methods, in the same order."""

    def __init__(
        self,
        manifest: Manifest,
        store: BlobStore,
        ranks: Ranks,
        rooms: Sequence[FreeMemory],
        micro_batch: int | None = None,
        memory: int | None = None,
        options: MemoryOptions | None = None,
        split: Split = Split.AUTO,
        policy: LocalPolicy = DEFAULT_POLICY,
    ) -> None:
        """`rooms`: the memory that each rank may take (`rooms_of`)."""
        self._ranks = ranks
        self._rooms = rooms
        work = replace(Workload.of(manifest), ranks=ranks.size)
        self.in_shards = in_shards(
            work, device_kind(ranks.device), rooms, micro_batch, options, split
        )
        if self.in_shards and work.completions:
            # Each sample takes passes of its own, in which all ranks take part, and ranks may have
            # different numbers of samples left.
            micro_batch = 1
        # On GPUs, FSDP2 casts shards to a narrower type as it gathers them.
        self.computes_exactly = not self.in_shards or narrow_type(ranks.device) is None
        self._sharded: list[int] = []
        super().__init__(manifest, store, ranks.device, micro_batch, memory, options, policy)
        self.memory += (
            f", in each of {ranks.size} processes that share it"
            if ranks.device.type == "cpu"
            else f", on each of {ranks.size} devices"
        )

    def _workload(self) -> Workload:
        return replace(Workload.of(self.manifest), ranks=self._ranks.size, shards=self.in_shards)

    def _room(self, memory: int | None) -> FreeMemory:
        """Return the memory to plan for. With shards all ranks compute the same number of sequences
        at once, so the smallest room applies to all."""
        own = self._rooms[self._ranks.rank]
        least = min(room.device for room in self._rooms) if self.in_shards else own.device
        return FreeMemory(device=least, host=min(room.host for room in self._rooms))

    def _build(self, store: BlobStore) -> tuple[PreTrainedModel, list[torch.nn.Parameter]]:
        if not self.in_shards:
            return super()._build(store)
        manifest = self.manifest
        # Parameters get memory once they have been sharded.
        model = build_model(manifest.model, manifest.parameters, torch.device("meta"))
        with init_empty_weights(include_buffers=False):
            tables = new_model(model_config(manifest.model), torch.device("cpu"))
        layout = manifest_layout(manifest)
        # Tensors that torch would cut through blocks are copied instead: every rank has a gradient of
        # them, and one rank has their state.
        unshardable = unshardable_tensors(layout, manifest.parameters, self._ranks.size)
        self._sharded = [index for index in range(len(layout.tensors)) if index not in unshardable]
        parameters = ordered_parameters(model, manifest.parameters)
        copied = {parameters[index] for index in unshardable}
        # The other ranks may be in the middle of a pass, which one rank cannot restart alone.
        self.computes_alone = not self._sharded
        _shard(model, copied, self._ranks)
        _copy_tables(tables, model)
        return model, ordered_parameters(model, manifest.parameters)

    def _part(self) -> ModelShard:
        division = MomentumDivision(self._ranks.size, self.in_shards)
        plan = division.plan(self.layout, self.manifest.parameters)
        place = RankPlace(plan, division, self._ranks.rank)
        return RankPart(self._ranks, place, self.parameters, self._sharded)

    def compile_layers(self, setting: Compile) -> str | None:
        # With shards a pass needs all ranks at once, and a trial may fail at one of them alone.
        return None if self.in_shards else super().compile_layers(setting)


def rooms_of(ranks: Ranks, memory: int | None = None) -> list[FreeMemory]:
    """Return the memory for each rank: `memory` bytes on the device, or else what is free. CPU
    ranks share one memory, so the smallest amount that one of them found applies to all."""
    found = ranks.run_together(lambda: free_memory(ranks.device, memory))
    rooms = [FreeMemory(device=d, host=h) for d, h in ranks.exchange([found.device, found.host])]
    if ranks.device.type == "cpu":
        rooms = [min(rooms, key=lambda room: room.device)] * ranks.size
    return rooms


def _shard(model: PreTrainedModel, copied: set[torch.nn.Parameter], ranks: Ranks) -> None:
    """Shard all parameters except those in `copied`, and allocate memory for all of them."""
    mesh = DeviceMesh(ranks.device.type, list(range(ranks.size)))
    # As with `autocast` on one GPU, the parameters that the step changes stay float32.
    policy = MixedPrecisionPolicy(param_dtype=narrow_type(ranks.device), reduce_dtype=torch.float32)
    # Each layer is gathered as a unit.
    for module in (*layers_of(model), model):
        fully_shard(module, mesh=mesh, mp_policy=policy, ignored_params=copied)
    model.to_empty(device=ranks.device)


def _copy_tables(origin: PreTrainedModel, model: PreTrainedModel) -> None:
    """Copy everything that is not a parameter, such as rotary frequencies, from `origin`, a model of the
    same configuration."""
    for theirs, ours in zip(origin.modules(), model.modules(), strict=True):
        for name, buffer in theirs.named_buffers(recurse=False):
            getattr(ours, name).copy_(buffer)
        for name, value in vars(theirs).items():
            # The library keeps some tensors as plain attributes, not as buffers.
            if isinstance(value, torch.Tensor):
                setattr(ours, name, value.to(next(ours.buffers()).device))
