"""Deadlines that follow what is observed, so that nobody has to tune them.

A collect deadline is a high quantile of how long updates took to arrive in recent rounds, times a
margin; a lease is a few typical rounds. Both stay inside the manifest's limits.
"""

from __future__ import annotations

from collections import deque

from ..wire.manifest import RoundSpec

_WINDOW_ROUNDS = 16
_QUANTILE = 0.95
# Half as long again as nearly all updates took: late enough for a slow round, early enough that a
# member which died unnoticed does not double the round.
_MARGIN = 1.5
# Each further slot waits longer, so that a swarm whose delays we underestimated finds its pace.
_SLOT_GROWTH = 1.5


class Pacing:
    """Remembers recent rounds and derives this round's deadlines. All times are in seconds."""

    def __init__(self, limits: RoundSpec) -> None:
        self._limits = limits
        self._arrivals: deque[list[float]] = deque(maxlen=_WINDOW_ROUNDS)
        self._decisions: deque[float] = deque(maxlen=_WINDOW_ROUNDS)
        self._rounds: deque[float] = deque(maxlen=_WINDOW_ROUNDS)
        self._derive()

    def record_round(self, *, arrivals: list[float], decision: float, total: float) -> None:
        """Take in one round: when each update arrived, how long deciding took, and the whole.

        Not one that waited for a member's silence to be certain: the lease would grow by itself.
        """
        if arrivals:
            self._arrivals.append(arrivals)
        self._decisions.append(decision)
        self._rounds.append(total)
        self._derive()

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
        self._collect = self._collect_seconds()

    def _collect_seconds(self) -> float:
        observed = sorted(seconds for arrivals in self._arrivals for seconds in arrivals)
        if not observed:
            return self._limits.collect_max_seconds
        high = observed[min(len(observed) - 1, int(_QUANTILE * len(observed)))]
        return _clamp(
            high * _MARGIN, self._limits.collect_min_seconds, self._limits.collect_max_seconds
        )


def _median(values: deque[float]) -> float:
    return sorted(values)[len(values) // 2]


def _clamp(value: float, low: float, high: float) -> float:
    return max(low, min(high, value))
