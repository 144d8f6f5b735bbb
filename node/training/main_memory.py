"""Free main memory."""

from __future__ import annotations

from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def free_main_memory() -> int:
    """Return the available main memory in bytes, within the cgroup's limit."""
    available = psutil.virtual_memory().available
    # A container's limit (cgroup 2), which the machine's own figure ignores.
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return available
    return max(0, min(available, limit - used))
