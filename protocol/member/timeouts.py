"""Deadlines derived from the observed rounds, so that they need no tuning.

The collect deadline is the typical time until the updates of six in ten members have arrived, times a
margin; a lease is the duration of a few typical rounds. Both stay inside the manifest's limits, and
fewer than a third of the members can change neither: a single member that is always just in time must
not make every round longer.
"""

from __future__ import annotations

from collections import deque

from ..wire.manifest import RoundSpec

_WINDOW_ROUNDS = 16
# Below two thirds, so that byzantine members cannot move it by being late or absent.
_QUANTILE = 0.6
# A member may take twice as long as most. A slower one still takes part in decisions, and its updates
# stay in its own momentum.
_MARGIN = 2.0
# Length of a round's first slot, in typical times from readiness to the decision.
_SLOT_DECISIONS = 3
# Limit of the growth of the collect deadline and of the first slot from one round to the next, so that a
# short disturbance does not set a long deadline. In a round with skipped slots the decision takes long
# because of these slots: restarted members, which have observed few rounds, would wait for a minute in
# each slot after two of them.
_ROUND_GROWTH = 1.5
# Each further slot waits longer, so that a swarm whose delays were underestimated finds its pace.
_SLOT_GROWTH = 1.5


class RoundTimeouts:
    """Recent rounds, and the deadlines derived from them. All times are in seconds."""

    def __init__(self, limits: RoundSpec) -> None:
        self._limits = limits
        self._arrivals: deque[float] = deque(maxlen=_WINDOW_ROUNDS)
        self._decisions: deque[float] = deque(maxlen=_WINDOW_ROUNDS)
        self._rounds: deque[float] = deque(maxlen=_WINDOW_ROUNDS)
        self._collect = limits.collect_max_seconds
        self._slot = limits.slot_min_seconds
        self._derive()

    def record_round(
        self, *, arrivals: list[float], members: int, decision: float, total: float
    ) -> None:
        """Add one round: the time after which each update arrived, the number of `members` whose update
        was due, the time from readiness to the `decision`, and the `total` duration.

        Do not add a round that waited for a lease to end before a member counted as silent: such rounds
        would make the lease longer and longer.
        """
        self._decisions.append(decision)
        self._rounds.append(total)
        self._derive()
        if arrivals:
            index = int(_QUANTILE * max(members, len(arrivals)))
            # If too few came in time, count the round as if the next one had come just too late.
            late = self._collect * _ROUND_GROWTH / _MARGIN
            self._arrivals.append(sorted(arrivals)[index] if index < len(arrivals) else late)
            self._collect = self._collect_seconds()

    @property
    def collect(self) -> float:
        """Seconds after the round's start for which the leader waits for updates."""
        return self._collect

    def slot(self, slot: int) -> float:
        """Return how long a slot may last before it is skipped."""
        # The exponent is bounded only to keep the power finite; the limit is reached much earlier.
        growth = _SLOT_GROWTH ** min(slot - 1, 64)
        return min(self._slot * growth, self._limits.slot_max_seconds)

    @property
    def round_seconds(self) -> float | None:
        """Typical duration of a round; None before one was observed."""
        return _median(self._rounds) if self._rounds else None

    @property
    def lease(self) -> float:
        """How long a member may go unheard before it counts as silent."""
        return self._lease

    @property
    def heartbeat(self) -> float:
        """Interval at which a member without other messages to send shows that it is alive.

        It does not depend on this member's lease, but on the shortest one: another member may be a
        newcomer that has seen no slow round yet.
        """
        return self._limits.lease_min_seconds / 4

    def _derive(self) -> None:
        """Compute the deadlines once per round: they are read for every message."""
        limits = self._limits
        decision = _median(self._decisions) if self._decisions else 0.0
        wanted = min(_SLOT_DECISIONS * decision, self._slot * _ROUND_GROWTH)
        self._slot = max(limits.slot_min_seconds, wanted)
        whole = _median(self._rounds) if self._rounds else 0.0
        self._lease = max(limits.lease_min_seconds, limits.lease_rounds * whole)

    def _collect_seconds(self) -> float:
        wanted = min(_median(self._arrivals) * _MARGIN, self._collect * _ROUND_GROWTH)
        return _clamp(wanted, self._limits.collect_min_seconds, self._limits.collect_max_seconds)


def _median(values: deque[float]) -> float:
    return sorted(values)[len(values) // 2]


def _clamp(value: float, low: float, high: float) -> float:
    return max(low, min(high, value))
