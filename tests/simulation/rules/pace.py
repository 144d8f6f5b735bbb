"""Rules of pace: deadlines that follow what most do, and that nobody alone can move."""

from __future__ import annotations

import itertools

from distro_node.protocol.member import pacing
from distro_node.protocol.member.pacing import Pacing
from distro_node.protocol.wire.manifest import RoundSpec

from .rule import Rule, edited, put

LIMITS = RoundSpec(
    collect_min_seconds=2.0,
    collect_max_seconds=100.0,
    slot_min_seconds=1.0,
    slot_max_seconds=50.0,
    lease_rounds=4,
    lease_min_seconds=20.0,
)


def _after(*rounds: tuple[list[float], int]) -> Pacing:
    """Rounds, each with its arrivals and its number of members."""
    pace = Pacing(LIMITS)
    for arrivals, members in rounds:
        pace.record_round(arrivals=arrivals, members=members, decision=0.1, total=6.0)
    return pace


def _liars_just_in_time_move_nothing() -> bool:
    """Two of seven, for a hundred rounds."""
    pace = Pacing(LIMITS)
    for _ in range(100):
        there = [3.0] * 5 + [0.93 * pace.collect] * 2
        pace.record_round(arrivals=there, members=7, decision=0.1, total=6.0)
    return pace.collect == 6.0


def _half_as_fast_is_in_time() -> bool:
    return _after(([5.0] * 10, 10)).collect == 10.0


def _a_deadline_grows_step_by_step() -> bool:
    """A short trouble sets no long deadline: from 6 s on, updates of most come too late."""
    pace, collects = _after(*[([3.0] * 10, 10)] * 20), []
    for _ in range(60):
        pace.record_round(arrivals=[3.0] * 4, members=10, decision=0.1, total=10.0)
        collects.append(pace.collect)
    steps = [later / earlier for earlier, later in itertools.pairwise(collects)]
    return collects[-1] > 20.0 and max(steps) <= 1.5 + 1e-9


def _only_recent_rounds_count() -> bool:
    return _after(*[([40.0] * 4, 4)] * 100, *[([3.0] * 4, 4)] * 16).collect == 6.0


def _deadlines_stay_within_the_limits() -> bool:
    return _after(([0.01] * 4, 4)).collect == 2.0


def _later_slots_last_longer() -> bool:
    """A swarm whose delays were underestimated finds its pace."""
    pace = Pacing(LIMITS)
    return pace.slot(1) == 1.0 and pace.slot(5) > 4.0


def _slots_have_a_longest() -> bool:
    """Whatever slot a liar speaks of."""
    return Pacing(LIMITS).slot(1 << 20) == 50.0


RULES = (
    Rule(
        "liars just in time move nothing",
        _liars_just_in_time_move_nothing,
        put(pacing, "_QUANTILE", 0.95),
    ),
    Rule("half as fast is in time", _half_as_fast_is_in_time, put(pacing, "_MARGIN", 1.0)),
    Rule(
        "a deadline grows step by step",
        _a_deadline_grows_step_by_step,
        put(pacing, "_COLLECT_GROWTH", 100.0),
    ),
    Rule(
        "only recent rounds count",
        _only_recent_rounds_count,
        put(pacing, "_WINDOW_ROUNDS", 1 << 20),
    ),
    Rule(
        "deadlines stay within the limits",
        _deadlines_stay_within_the_limits,
        put(pacing, "_clamp", lambda value, low, high: value),
    ),
    Rule("later slots last longer", _later_slots_last_longer, put(pacing, "_SLOT_GROWTH", 1.0)),
    Rule(
        "slots have a longest",
        _slots_have_a_longest,
        edited(
            Pacing,
            "slot",
            ("min(self._slot * growth, self._limits.slot_max_seconds)", "self._slot * growth"),
        ),
    ),
)
