"""How much main memory there is to take."""

from __future__ import annotations

from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def free_main_memory() -> int:
    """Bytes that may be taken without anybody else's being swapped out."""
    available = psutil.virtual_memory().available
    # A container's limit (cgroup 2), which the machine's own figure does not know.
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return available
    return max(0, min(available, limit - used))
