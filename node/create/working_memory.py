"""Memory for the parts of a file that must be unpacked whole."""

from __future__ import annotations

from ..storage.data_dir import size_text
from ..training.main_memory import free_main_memory

# With what the processes of `create` hold besides, it is less than 400 MB.
ALWAYS_BYTES = 128 << 20


def unpacking_limit() -> int:
    """Return how many bytes a file may need: what is free, and at least `ALWAYS_BYTES`."""
    return max(ALWAYS_BYTES, free_main_memory())


def memory_shortage(needed: int) -> str | None:
    """Return the reason why this many bytes are too many; None if they aren't."""
    if needed <= ALWAYS_BYTES or needed <= (limit := unpacking_limit()):
        return None
    return f"takes {size_text(needed)} of memory, and {size_text(limit)} are free"
