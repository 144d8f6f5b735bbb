"""Deadlines that follow what is observed, so that nobody has to tune them.

A collect deadline is the typical time in which six of ten members' updates were there, times a margin; a
lease is a few typical rounds. Both stay inside the manifest's limits, and fewer than a third of the
members can move neither: a single one that is always just in time must not make every round longer.
"""

from __future__ import annotations

from collections import deque

from ..wire.manifest import RoundSpec

_WINDOW_ROUNDS = 16
# Below two thirds, so that liars cannot move it by coming late or not at all.
_QUANTILE = 0.6
# Twice as long as most took: a member may be half as fast as they are. A slower one still takes part in
# decisions, and its updates stay in its own momentum.
_MARGIN = 2.0
# From one round to the next, so that no short trouble sets a long deadline.
_COLLECT_GROWTH = 1.5
# Each further slot waits longer, so that a swarm whose delays we underestimated finds its pace.
_SLOT_GROWTH = 1.5


class Pacing:
    """Remembers recent rounds and derives this round's deadlines. All times are in seconds."""

    def __init__(self, limits: RoundSpec) -> None:
        self._limits = limits
        self._arrivals: deque[float] = deque(maxlen=_WINDOW_ROUNDS)
        self._decisions: deque[float] = deque(maxlen=_WINDOW_ROUNDS)
        self._rounds: deque[float] = deque(maxlen=_WINDOW_ROUNDS)
        self._collect = limits.collect_max_seconds
        self._derive()

    def record_round(
        self, *, arrivals: list[float], members: int, decision: float, total: float
    ) -> None:
        """Take in one round: when each update arrived, of how many members, how long deciding took, and
        the whole.

        Not one that waited for a member's silence to be certain: the lease would grow by itself.
        """
        self._decisions.append(decision)
        self._rounds.append(total)
        self._derive()
        if arrivals:
            index = int(_QUANTILE * max(members, len(arrivals)))
            # Too few came in time: as if the next had come just too late.
            late = self._collect * _COLLECT_GROWTH / _MARGIN
            self._arrivals.append(sorted(arrivals)[index] if index < len(arrivals) else late)
            self._collect = self._collect_seconds()

    @property
    def collect(self) -> float:
        """How long after the round's start the leader waits for updates."""
        return self._collect

    def slot(self, slot: int) -> float:
        """How long a slot may last before it is skipped."""
        # The exponent is bounded only to keep the power finite; the limit is reached long before.
        growth = _SLOT_GROWTH ** min(slot - 1, 64)
        return min(self._slot * growth, self._limits.slot_max_seconds)

    @property
    def round_seconds(self) -> float | None:
        """How long a round takes, typically; None before one was seen."""
        return _median(self._rounds) if self._rounds else None

    @property
    def lease(self) -> float:
        """How long a member may be unheard before it counts as silent."""
        return self._lease

    @property
    def heartbeat(self) -> float:
        """How often a member with nothing else to say shows that it is alive.

        Not by the own lease: a newcomer has seen no slow round yet, and its lease is the shortest.
        """
        return self._limits.lease_min_seconds / 4

    def _derive(self) -> None:
        """Work the deadlines out once a round: they are asked for with every message."""
        limits = self._limits
        decision = _median(self._decisions) if self._decisions else 0.0
        self._slot = max(limits.slot_min_seconds, 3 * decision)
        whole = _median(self._rounds) if self._rounds else 0.0
        self._lease = max(limits.lease_min_seconds, limits.lease_rounds * whole)

    def _collect_seconds(self) -> float:
        wanted = min(_median(self._arrivals) * _MARGIN, self._collect * _COLLECT_GROWTH)
        return _clamp(wanted, self._limits.collect_min_seconds, self._limits.collect_max_seconds)


def _median(values: deque[float]) -> float:
    return sorted(values)[len(values) // 2]


def _clamp(value: float, low: float, high: float) -> float:
    return max(low, min(high, value))
