"""A member's own memory options: precision and place of its state, and activation checkpointing.

No option affects the parameters, their step or their fingerprint. Both processes use this, so
nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Precision = Literal["float32", "bfloat16", "int8"]
Place = Literal["device", "host"]

GROUP = 256
"""Numbers that share a scale in 8 bits: 4 bytes for 256 are a sixty-fourth more, and one large
number coarsens only its neighbours."""
SHORTEST_ROW = 64
"""Rows shorter than this stay in float32: scales would take what the codes save."""
CPU_STRIPE, GPU_STRIPE = 1 << 17, 1 << 24
"""Elements of the optimizer's stripes. A CPU is fastest while the few arrays of that size in use
stay in its caches (half a MiB each in float32); 64 MiB keep a GPU busy, and are small beside any
model that needs one."""

CPU_KEPT_SUMS, GPU_KEPT_SUMS = 1 << 22, 1 << 26
"""Elements of the sums that a scaled step keeps until it knows its factors, in float32: a layer or two
of a model that a CPU trains, and 256 MiB on a GPU, where the gradient's memory is free meanwhile."""

NOISE = 1 << 20
"""Random numbers drawn once, with which a CPU rounds: drawing is slow there, compared with rounding.
Each stripe uses a run that starts at a different offset, and 4 MiB stay near the caches."""

AUDIT_BYTES = 12
"""Bytes of main memory that must be free per trained parameter before an audit of another member's
work, or there is none: what the audits of two rounds keep, and two bytes for a gradient in use
(`audit_cache`)."""

# Logits at a time, in float32: enough to keep a GPU busy, few enough to stay near a CPU's caches.
_GPU_LOGITS = 1 << 25
_CPU_LOGITS = 1 << 22


@dataclass(frozen=True, kw_only=True)
class StateOptions:
    """How momentum, second moment and smoothed gradient are stored."""

    precision: Precision = "float32"
    place: Place = "device"
    """`host`: in main memory, pinned where the device is a GPU, and processed a stripe at a time."""


IN_FLOAT32 = StateOptions()


@dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """All memory options except the micro-batch."""

    state: StateOptions = StateOptions()
    checkpointing: bool = False
    """Activations inside a layer are recomputed for the backward pass instead of kept."""


def stored_bytes(rows: int, columns: int, precision: Precision) -> int:
    """Return the bytes of a state of rows × columns."""
    if precision == "float32" or (precision == "int8" and columns < SHORTEST_ROW):
        return 4 * rows * columns
    if precision == "bfloat16":
        return 2 * rows * columns
    return rows * (columns + 4 * -(-columns // GROUP))


def logit_rows(vocabulary: int, device: str) -> int:
    """Return how many tokens go through the head at once on a kind of device."""
    return max(16, (_CPU_LOGITS if device == "cpu" else _GPU_LOGITS) // vocabulary)
