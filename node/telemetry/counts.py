"""What a scrape of a node reads: its status, and the monotonic counts that a status leaves out.

Each count is a plain number, increased by the code that does what is counted. Counts run from the start
of the program to its end, over pauses.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from ..network.traffic import TrafficTotals
from .status import Status

RoundPhase = Literal["compute", "encode", "transfer", "agree", "apply", "other"]
"""The phases of a round that are measured."""

# Upper bounds in seconds. A small model on a LAN computes in tens of milliseconds, and the manifest's
# default limit of a collect phase is ten minutes; bounds that grow by a factor of about three suffice to
# tell a slow phase from a fast one.
PHASE_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 600.0)
# Upper bounds in seconds, from imperceptible stalls to those that peers take for a broken connection.
STALL_BUCKETS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Durations:
    """Histogram of durations in seconds. `bounds`: the upper bounds of its buckets."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = (*bounds, float("inf"))
        self.total = 0.0
        """Sum of all durations."""
        self._counts = [0] * len(self.bounds)

    def add(self, seconds: float) -> None:
        """Add a duration."""
        self._counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def snapshot(self) -> Durations:
        """Return an independent copy."""
        return copy.deepcopy(self)

    def cumulative(self) -> list[int]:
        """Return for each bound how many durations are not longer than it."""
        sums, so_far = [], 0
        for count in self._counts:
            so_far += count
            sums.append(so_far)
        return sums


class Increases:
    """Sums of the increases of totals that may also decrease, because a change of chain replaces the
    records that they count.

    The value of a total when it is first seen is from before this node's time, and is left out.
    """

    def __init__(self) -> None:
        self.sums: Counter[str] = Counter()
        self._last_totals: dict[str, int] = {}

    def update(self, totals: Mapping[str, int]) -> None:
        """Add the increase of each total since the last call."""
        for name, total in totals.items():
            self.sums[name] += max(0, total - self._last_totals.get(name, total))
            self._last_totals[name] = total


@dataclass
class NodeCounts:
    """What has happened to a node since the start of its program."""

    events: Counter[str] = field(default_factory=Counter)
    """Events, by kind."""
    own_mismatches: int = 0
    """Events of kind `mismatch` that concern this node's own parameters."""
    updates_filtered: int = 0
    """Updates that the outlier filter left out of the step."""
    idle_seconds: float = 0.0
    """Seconds in which the trainer was idle, or waited for its data."""
    phases: dict[str, Durations] = field(
        default_factory=lambda: {each: Durations(PHASE_BUCKETS) for each in get_args(RoundPhase)}
    )
    """Durations of the phases of a round."""
    audits: Increases = field(default_factory=Increases)
    """Increases of the chain's totals of audits, by the total's name."""

    def snapshot(self) -> NodeCounts:
        """Return an independent copy."""
        return copy.deepcopy(self)


@dataclass(frozen=True, kw_only=True)
class NodeReading:
    """Everything that a scrape of a node renders, at one time."""

    status: Status
    counts: NodeCounts = field(default_factory=NodeCounts)
    traffic: TrafficTotals = field(default_factory=TrafficTotals)
    stalls: Durations = field(default_factory=lambda: Durations(STALL_BUCKETS))
    folder: Path | None = None
    """The data directory."""
