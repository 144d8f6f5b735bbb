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
"""Consecutive values that share one scale in an 8-bit state: 4 bytes for 256 values add a sixty-fourth,
and one large value makes only its neighbours less precise."""
SHORTEST_ROW = 64
"""Rows shorter than this stay in float32: their scales would take what 8 bits save."""
CPU_STRIPE, GPU_STRIPE = 1 << 17, 1 << 24
"""Elements in a stripe, the piece of a tensor that the optimizer processes at once. A CPU is fastest
while the few arrays of that size in use stay in its caches (half a MiB each in float32); 64 MiB keep a
GPU busy, and are small compared with any model that needs one."""

CPU_KEPT_SUMS, GPU_KEPT_SUMS = 1 << 22, 1 << 26
"""Elements of the sums that a scaled step keeps until it knows its factors, in float32: a layer or two
of a model that a CPU trains, and 256 MiB on a GPU, where the gradient's memory is free meanwhile."""

NOISE = 1 << 20
"""Number of random numbers, drawn once, with which a CPU rounds the stored state: drawing is slow there,
compared with rounding. Each stripe uses those from a different offset on; 4 MiB stay near the caches."""

AUDIT_BYTES = 12
"""Bytes of main memory per trained parameter that must be free for an audit of another member's work to
take place: what the audits of two rounds keep, and two bytes for a gradient in use (`audit_cache`)."""

# Number of logits computed at once, in float32: enough to keep a GPU busy, and few enough to stay near a
# CPU's caches.
_GPU_LOGITS = 1 << 25
_CPU_LOGITS = 1 << 22


@dataclass(frozen=True, kw_only=True)
class StateOptions:
    """How momentum, second moment and smoothed gradient are stored."""

    precision: Precision = "float32"
    place: Place = "device"
    """`device`: in the device's memory. `host`: in main memory, pinned if the device is a GPU, and
    processed a stripe at a time."""


IN_FLOAT32 = StateOptions()


@dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """All memory options except the micro-batch."""

    state: StateOptions = StateOptions()
    checkpointing: bool = False
    """Activations inside a layer are recomputed for the backward pass instead of kept."""


def stored_bytes(rows: int, columns: int, precision: Precision) -> int:
    """Return the bytes that a state of rows × columns takes."""
    if precision == "float32" or (precision == "int8" and columns < SHORTEST_ROW):
        return 4 * rows * columns
    if precision == "bfloat16":
        return 2 * rows * columns
    return rows * (columns + 4 * -(-columns // GROUP))


def logit_rows(vocabulary: int, device: str) -> int:
    """Return how many tokens go through the head at once on a kind of device."""
    return max(16, (_CPU_LOGITS if device == "cpu" else _GPU_LOGITS) // vocabulary)
