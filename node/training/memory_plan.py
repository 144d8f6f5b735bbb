"""The choice of how a member keeps its optimizer state and activations: the cheapest option that fits.

It uses arithmetic alone (`memory_model`), so that `distro-node fit` reports for a machine what a
trainer there would choose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..settings.components import Split
from .architectures import takes_images
from .errors import TrainerFailed
from .memory_model import (
    LOCAL_MOMENTUM,
    MOMENTUM,
    SECOND_MOMENT,
    SMOOTHED,
    MemoryNeeds,
    Workload,
    needs,
    sequence_bytes,
)
from .memory_options import MemoryOptions, Place, Precision, StateOptions

LARGEST_MICRO_BATCH = 32
"""More sequences at once than this only cost memory."""

CPU_TOKENS = 1024
"""Most tokens at once on a CPU: with more, a layer's activations no longer stay in its caches
(benchmarks/results/2026-11-24-throughput.json)."""

# Factor for what an allocator reserves beyond what it hands out: at most 7.5 % in measurements. The
# arithmetic itself is within 5 % of the measured values.
_SLACK = 1.075


@dataclass(frozen=True, kw_only=True)
class FreeMemory:
    """Memory that may be taken."""

    device: int
    """Bytes on the device."""
    host: int = 0
    """Bytes of main memory, if the device is a GPU."""


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """One way to train a model."""

    options: MemoryOptions
    needs: MemoryNeeds
    micro_batch: int
    fits: bool

    @property
    def summary(self) -> str:
        """The storage of the state and its cost, in words."""
        state = self.options.state
        names = (MOMENTUM, SECOND_MOMENT, SMOOTHED, LOCAL_MOMENTUM)
        *others, last = (part.name for part in self.needs.permanent if part.name in names)
        kept = f"{', '.join(others)} and {last}" if others else last
        parts = [f"{kept} in {_PRECISIONS[state.precision]}"]
        if state.place == "host":
            parts[0] += " in main memory, across the bus twice a round"
        if self.options.checkpointing:
            parts.append("activations computed twice, which is a third more work")
        return ", ".join(parts)


_PRECISIONS: dict[Precision, str] = {
    "float32": "float32",
    "bfloat16": "bfloat16",
    "int8": "8 bits",
}


def all_options(device: str) -> Iterator[MemoryOptions]:
    """Yield every option for a kind of device, in ascending order of cost.

    A coarser state has no measurable cost, main memory costs a fixed time per round, and recomputed
    activations cost a third of the computing time.
    """
    states: list[tuple[Precision, Place]] = [
        ("float32", "device"),
        ("bfloat16", "device"),
        ("int8", "device"),
        ("bfloat16", "host"),
        ("int8", "host"),
    ]
    if device == "cpu":
        states = [each for each in states if each[1] == "device"]
    for checkpointing in (False, True):
        for precision, place in states:
            yield MemoryOptions(
                state=StateOptions(precision=precision, place=place), checkpointing=checkpointing
            )


def choices(
    work: Workload,
    device: str,
    room: FreeMemory,
    micro_batch: int | None = None,
    wanted: MemoryOptions | None = None,
) -> Iterator[MemoryPlan]:
    """Yield every option, or the wanted one, with its needs and whether it fits. Raises as `needs`
    does."""
    candidates = all_options(device)
    if wanted is not None:
        candidates = iter((wanted,))
    elif work.shards:
        # With shards memory is short, and a pass that runs out of it cannot be restarted.
        candidates = (options for options in candidates if options.checkpointing)
    for options in candidates:
        size = micro_batch or 1
        needed = needs(work, device, options, size)
        fits = _SLACK * needed.device <= room.device and (
            device == "cpu" or needed.host <= room.host
        )
        if fits and micro_batch is None:
            # As many sequences as fit into half of the remaining memory; the rest is for other programs.
            spare = room.device - int(_SLACK * needed.device)
            size += min(
                _most_at_once(work, device) - 1,
                spare // 2 // sequence_bytes(work, device, options),
            )
            needed = needs(work, device, options, size)
        yield MemoryPlan(options=options, needs=needed, micro_batch=size, fits=fits)


def _most_at_once(work: Workload, device: str) -> int:
    """Return the number of sequences beyond which nothing is gained."""
    if device != "cpu" or takes_images(str(work.config.get("model_type"))):
        return LARGEST_MICRO_BATCH
    return max(
        1, min(LARGEST_MICRO_BATCH, CPU_TOKENS // (work.sequence_length * max(1, work.completions)))
    )


def in_shards(
    work: Workload,
    device: str,
    rooms: Iterable[FreeMemory],
    micro_batch: int | None = None,
    wanted: MemoryOptions | None = None,
    split: Split = Split.AUTO,
) -> bool:
    """Whether each of several devices, which have `rooms` of free memory, gets a shard of the model
    instead of a copy: as `split` says or, with `AUTO`, because a copy does not fit on one of them. A
    model with adapters is never sharded: they are small compared with their frozen base. Raises as
    `needs` does."""
    if split is not Split.AUTO or work.frozen:
        return split is Split.SHARDS and not work.frozen
    return not all(
        any(choice.fits for choice in choices(work, device, room, micro_batch, wanted))
        for room in rooms
    )


def choose(
    work: Workload,
    device: str,
    room: FreeMemory,
    micro_batch: int | None = None,
    wanted: MemoryOptions | None = None,
) -> MemoryPlan:
    """Return the first option that fits. Raises `TrainerFailed` (`model_too_large`) if none does."""
    plans = list(choices(work, device, room, micro_batch, wanted))
    chosen = next((choice for choice in plans if choice.fits), None)
    if chosen is None:
        least = min(plans, key=lambda choice: choice.needs.device)
        needed = int(_SLACK * least.needs.device)
        host = "" if device == "cpu" else f" beside {least.needs.host} of main memory"
        raise TrainerFailed(
            "model_too_large",
            f"training this model takes {needed} bytes ({needed / 2**30:.1f} GiB){host} at "
            f"least, with {least.summary}; {device} has {room.device} ({room.device / 2**30:.1f} "
            "GiB) free",
        )
    return chosen


def plan_line(choice: MemoryPlan, room: FreeMemory) -> str:
    """Return the chosen option and its cost as a line for people."""
    gigabytes = choice.needs.device / 1e9, room.device / 1e9
    plural = "" if choice.micro_batch == 1 else "s"
    return (
        f"{gigabytes[0]:.1f} of {gigabytes[1]:.1f} GB: {choice.summary}, {choice.micro_batch} "
        f"sequence{plural} at once"
    )
