"""The processor's energy, as Linux tells it: the counters of RAPL under /sys/class/powercap.

Intel and AMD both appear as `intel-rapl`. A package's counter has its cores in it but not the memory,
which some have a counter of their own for (`dram`). They count for the whole computer: what other
programs do is in it, too. Kernels since 5.10 let only root read them unless an administrator allows it;
what cannot be read is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from .arithmetic import Reading

POWERCAP = Path("/sys/class/powercap")

# Two sockets with memory make four; a tree that somebody made up ends here.
_MAX_ZONES = 64
_MAX_BYTES = 64
_MICROJOULES = 1e6


class Processor:
    """The counters that can be read."""

    def __init__(self, root: Path = POWERCAP, clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._clock = clock
        self.why: str | None = None
        """Why the last reading had nothing, for people; None: it had."""

    def read(self) -> Reading | None:
        """What they say now; None if one that is there cannot be read, or there is none."""
        zones: list[Path] = []
        counters = []
        self.why = None
        try:
            zones = sorted(self._root.glob("intel-rapl:*"))[:_MAX_ZONES]
            for zone in zones:
                name = _text(zone / "name")
                if not (name.startswith("package") or name == "dram"):
                    continue
                value = int(_text(zone / "energy_uj"))
                wraps_at = int(_text(zone / "max_energy_range_uj"))
                if value < 0 or wraps_at <= 0:
                    return self._nothing(zones)
                counters.append((zone.name, value, wraps_at, _MICROJOULES))
        except (OSError, ValueError):
            return self._nothing(zones)
        if not counters:
            return self._nothing(zones)
        return Reading(at=self._clock(), counters=tuple(counters))

    def why_not(self) -> str | None:
        """Why the counters say nothing, for people; None: they do."""
        self.read()
        return self.why

    def _nothing(self, zones: list[Path]) -> None:
        self.why = (
            "only root may read the processor's counters of energy (RAPL)"
            if zones
            else "this system has no counters of the processor's energy (RAPL)"
        )


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MAX_BYTES).decode("ascii", "replace").strip()
