"""Memory for the parts of a file that must be unpacked as a whole."""

from __future__ import annotations

from ..storage.data_dir import size_text
from ..training.main_memory import free_main_memory

# Bytes that unpacking may always take. Together with what else the processes of `create` hold, this is
# less than 400 MB.
ALWAYS_BYTES = 128 << 20


def unpacking_limit() -> int:
    """Return how many bytes unpacking may take: the free memory, and at least `ALWAYS_BYTES`."""
    return max(ALWAYS_BYTES, free_main_memory())


def memory_shortage(needed: int) -> str | None:
    """Return, as the end of a sentence, why this many bytes are too many; None if they are not."""
    if needed <= ALWAYS_BYTES or needed <= (limit := unpacking_limit()):
        return None
    return f"takes {size_text(needed)} of memory, and {size_text(limit)} are free"
