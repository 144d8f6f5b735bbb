"""Deadlines derived from observation, inside the manifest's limits."""

from __future__ import annotations

import itertools

import pytest
from distro_node.protocol.member.timeouts import RoundTimeouts
from distro_node.protocol.wire.manifest import RoundSpec
from hypothesis import given
from hypothesis import strategies as st

LIMITS = RoundSpec(
    collect_min_seconds=2.0,
    collect_max_seconds=100.0,
    slot_min_seconds=1.0,
    slot_max_seconds=50.0,
    lease_rounds=4,
    lease_min_seconds=20.0,
)


def after(*rounds: tuple[list[float], float, float]) -> RoundTimeouts:
    pacing = RoundTimeouts(LIMITS)
    for arrivals, decision, total in rounds:
        pacing.record_round(
            arrivals=arrivals, members=len(arrivals), decision=decision, total=total
        )
    return pacing


def test_who_knows_nothing_waits_longest() -> None:
    pacing = RoundTimeouts(LIMITS)
    assert pacing.collect == 100.0
    assert pacing.slot(1) == 1.0
    assert pacing.lease == 20.0
    assert pacing.heartbeat == 5.0


def test_the_collect_deadline_is_a_margin_above_most_arrivals() -> None:
    pacing = after(([float(second) for second in range(1, 11)], 0.1, 10.0))
    assert pacing.collect == 14.0
    quick = after(([4.0] * 99 + [90.0], 0.1, 10.0))
    assert quick.collect == 8.0


@pytest.mark.parametrize("members", [4, 7, 16, 100])
def test_liars_that_are_always_just_in_time_gain_nothing(members: int) -> None:
    """Fewer than a third. With a quantile of 95 % one of sixteen stretched rounds from 1 s to 514 s."""
    pacing = RoundTimeouts(LIMITS)
    liars = (members - 1) // 3
    for late in [0.93 * pacing.collect, 0.93 * pacing.collect, None] * 100:
        there = [3.0] * (members - liars)
        if late is not None:
            there += [0.93 * pacing.collect] * liars
        pacing.record_round(arrivals=there, members=members, decision=0.1, total=6.0)
    assert pacing.collect == 6.0


def test_where_most_come_too_late_the_deadline_grows_step_by_step() -> None:
    pacing = after(*[([3.0] * 10, 0.1, 10.0)] * 20)
    assert pacing.collect == 6.0
    pacing.record_round(arrivals=[90.0] * 10, members=10, decision=0.1, total=100.0)
    assert pacing.collect == 6.0
    collects = []
    for _ in range(60):
        pacing.record_round(arrivals=[3.0] * 4, members=10, decision=0.1, total=10.0)
        collects.append(pacing.collect)
    assert collects == sorted(collects)
    assert all(b <= 1.5 * a + 1e-9 for a, b in itertools.pairwise(collects))
    assert collects[-1] > 20


def test_deadlines_stay_inside_the_limits() -> None:
    assert after(([0.01] * 4, 0.001, 0.1)).collect == 2.0
    assert after(([900.0] * 4, 0.001, 0.1)).collect == 100.0
    assert after(*[([], 1000.0, 1.0)] * 20).slot(1) == 50.0


def test_slots_grow_from_thrice_the_typical_decision() -> None:
    pacing = after(*[([], 2.0, 10.0)] * 5)
    assert [pacing.slot(slot) for slot in (1, 2, 3)] == [6.0, 9.0, 13.5]
    assert pacing.slot(2**20) == 50.0


def test_one_slow_decision_lengthens_the_slots_by_half_at_most() -> None:
    """A restarted member has observed this round alone: its decision took long because slots were
    skipped."""
    assert after(([], 53.0, 60.0)).slot(1) == 1.5
    assert after(([], 53.0, 60.0), ([], 53.0, 60.0)).slot(1) == 2.25
    assert after(([], 53.0, 60.0), *[([], 0.1, 1.0)] * 2).slot(1) == 1.0


def test_the_lease_is_some_typical_rounds() -> None:
    pacing = after(([], 0.1, 30.0), ([], 0.1, 10.0), ([], 0.1, 3000.0))
    # A single round that took forever (a closed laptop) does not affect it.
    assert pacing.lease == 4 * 30.0


def test_heartbeats_come_in_time_for_the_shortest_lease() -> None:
    """A newcomer has seen no slow round yet and would soon miss a member that has seen many."""
    assert 3 * after(([], 0.1, 3000.0)).heartbeat < RoundTimeouts(LIMITS).lease


def test_only_recent_rounds_count() -> None:
    pacing = after(*[([50.0], 5.0, 80.0)] * 100, *[([2.0], 0.5, 6.0)] * 16)
    assert (pacing.collect, pacing.slot(1), pacing.lease) == (4.0, 1.5, 24.0)


seconds = st.floats(0.0, 1e6)


@given(st.lists(st.tuples(st.lists(seconds, max_size=9), seconds, seconds), max_size=40))
def test_whatever_was_observed(rounds: list[tuple[list[float], float, float]]) -> None:
    pacing = after(*rounds)
    assert 2.0 <= pacing.collect <= 100.0
    slots = [pacing.slot(slot) for slot in range(1, 100)]
    assert slots == sorted(slots)
    assert slots[0] >= 1.0
    assert slots[-1] <= 50.0
    assert pacing.lease >= 20.0
