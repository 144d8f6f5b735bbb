"""How a member keeps what is its own affair: the precision and place of its state, and its activations.

No option touches the parameters, their step or their fingerprint. Both processes use this, so nothing
here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Precision = Literal["float32", "bfloat16", "int8"]
Place = Literal["device", "host"]

GROUP = 256
"""Numbers that share a scale in 8 bits: 4 bytes for 256 are a sixty-fourth more, and one large number
makes no more than its neighbours coarse."""
SHORTEST_ROW = 64
"""Rows shorter than this stay in float32: scales would take what the codes save."""
CPU_STRIPE, GPU_STRIPE = 1 << 17, 1 << 24
"""Elements of the optimizer's stripes. A CPU is fastest while the few arrays of that size that are
worked on stay in its caches (half a MiB each in float32); a GPU is kept busy by 64 MiB, small beside any
model that needs one."""

NOISE = 1 << 20
"""Numbers drawn once by which a CPU rounds: drawing is slow there, beside rounding. A stretch from a
place of its own serves each stripe, and 4 MiB stay near the caches."""

LOOK_ROOM = 12
"""Bytes of main memory that must be free for each trained parameter before a look at another member's
work, or there is none: what looks of two rounds keep, and two of a gradient that is worked on
(`looks`)."""

# Logits at a time: what a GPU is busy with, and what stays near a CPU's caches; of float32.
_GPU_LOGITS = 1 << 25
_CPU_LOGITS = 1 << 22


@dataclass(frozen=True, kw_only=True)
class StateOptions:
    """How momentum, second moment and smoothed gradient are kept."""

    precision: Precision = "float32"
    place: Place = "device"
    """`host`: in main memory, pinned where the device is a GPU; a stripe at a time is worked on."""


IN_FLOAT32 = StateOptions()


@dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """All of it, but for how many sequences are computed at once."""

    state: StateOptions = StateOptions()
    checkpointing: bool = False
    """Activations inside of a layer are computed once more for the backward pass and not kept."""


def stored_bytes(rows: int, columns: int, precision: Precision) -> int:
    """What a state of rows × columns takes."""
    if precision == "float32" or (precision == "int8" and columns < SHORTEST_ROW):
        return 4 * rows * columns
    if precision == "bfloat16":
        return 2 * rows * columns
    return rows * (columns + 4 * -(-columns // GROUP))


def logit_rows(vocabulary: int, device: str) -> int:
    """How many tokens go through the head at once, on a kind of device."""
    return max(16, (_CPU_LOGITS if device == "cpu" else _GPU_LOGITS) // vocabulary)
