"""Rules of pacing: deadlines follow the majority, and no single member can move them."""

from __future__ import annotations

import itertools

from distro_node.protocol.member.timeouts import RoundTimeouts
from distro_node.protocol.wire.manifest import RoundSpec

LIMITS = RoundSpec(
    collect_min_seconds=2.0,
    collect_max_seconds=100.0,
    slot_min_seconds=1.0,
    slot_max_seconds=50.0,
    lease_rounds=4,
    lease_min_seconds=20.0,
)


def _after(*rounds: tuple[list[float], int]) -> RoundTimeouts:
    """Record rounds, each with its arrivals and its number of members."""
    pace = RoundTimeouts(LIMITS)
    for arrivals, members in rounds:
        pace.record_round(arrivals=arrivals, members=members, decision=0.1, total=6.0)
    return pace


def test_liars_just_in_time_move_nothing() -> None:
    """Two of seven, for a hundred rounds."""
    pace = RoundTimeouts(LIMITS)
    for _ in range(100):
        there = [3.0] * 5 + [0.93 * pace.collect] * 2
        pace.record_round(arrivals=there, members=7, decision=0.1, total=6.0)
    assert pace.collect == 6.0


def test_half_as_fast_is_in_time() -> None:
    assert _after(([5.0] * 10, 10)).collect == 10.0


def test_a_deadline_grows_step_by_step() -> None:
    """A short disturbance sets no long deadline: from 6 s on, most updates come too late."""
    pace, collects = _after(*[([3.0] * 10, 10)] * 20), []
    for _ in range(60):
        pace.record_round(arrivals=[3.0] * 4, members=10, decision=0.1, total=10.0)
        collects.append(pace.collect)
    steps = [later / earlier for earlier, later in itertools.pairwise(collects)]
    assert collects[-1] > 20.0
    assert max(steps) <= 1.5 + 1e-9


def test_only_recent_rounds_count() -> None:
    assert _after(*[([40.0] * 4, 4)] * 100, *[([3.0] * 4, 4)] * 16).collect == 6.0


def test_deadlines_stay_within_the_limits() -> None:
    assert _after(([0.01] * 4, 4)).collect == 2.0


def test_later_slots_last_longer() -> None:
    """So that a swarm whose delays were underestimated finds its pace."""
    pace = RoundTimeouts(LIMITS)
    assert pace.slot(1) == 1.0
    assert pace.slot(5) > 4.0


def test_slots_have_a_longest() -> None:
    """Whatever slot a liar names."""
    assert RoundTimeouts(LIMITS).slot(1 << 20) == 50.0
