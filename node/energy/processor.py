"""Energy of the processor on Linux: the RAPL counters under /sys/class/powercap.

Intel's and AMD's counters both appear as `intel-rapl`. A package's counter includes its cores but not
the memory, for which some computers have a separate counter (`dram`). The counters include what other
programs use. Since Linux 5.10 only root may read them unless an administrator allows it; if they cannot
be read, the energy is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from .arithmetic import MeterReading

POWERCAP = Path("/sys/class/powercap")

# Two sockets with memory have four zones; the limit guards against a fabricated directory tree.
_MAX_ZONES = 64
_MAX_BYTES = 64
_MICROJOULES = 1e6


class Processor:
    """Readable RAPL counters of this computer."""

    def __init__(self, root: Path = POWERCAP, clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._clock = clock
        self.why: str | None = None
        """Why the last reading failed, for people; None if it succeeded."""

    def read(self) -> MeterReading | None:
        """Return the counters' current values; None if there are none, or if any of them cannot be
        read."""
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
                    return self._unreadable(zones)
                counters.append((zone.name, value, wraps_at, _MICROJOULES))
        except (OSError, ValueError):
            return self._unreadable(zones)
        if not counters:
            return self._unreadable(zones)
        return MeterReading(at=self._clock(), counters=tuple(counters))

    def why_not(self) -> str | None:
        """Return why the counters cannot be read, for people; None if they can."""
        self.read()
        return self.why

    def _unreadable(self, zones: list[Path]) -> None:
        self.why = (
            "only root may read the processor's energy counters (RAPL)"
            if zones
            else "this system has no energy counters of the processor (RAPL)"
        )


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MAX_BYTES).decode("ascii", "replace").strip()
