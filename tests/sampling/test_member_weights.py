"""Shares of members with all kinds of claims: rounds are simulated with the protocol's own deadlines,
streams and weights; a member's update arrives after the time that its streams take."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest
from distro_node.crypto.hashing import ContentId
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.shares import first_shares, next_shares
from distro_node.protocol.member.capacity import Capacity
from distro_node.protocol.member.timeouts import RoundTimeouts
from distro_node.protocol.sampling.assignment import AssignmentRules
from distro_node.protocol.sampling.member_weights import MemberWeight, next_weights
from distro_node.protocol.sampling.sampler import StreamOrder
from distro_node.protocol.wire.manifest import RoundSpec
from distro_node.protocol.wire.membership import Membership
from distro_node.protocol.wire.messages import Record, RecordId, UpdateEntry
from seeds import seeds

DAY = 86_400
HUGE = 1 << 40
Claim = Callable[[int, int], int]
"""(round, true capacity) → stated capacity."""


def honest(round_: int, true: int) -> int:
    return true


def boasts(round_: int, true: int) -> int:
    return HUGE


def is_modest(round_: int, true: int) -> int:
    return 1


def claims_nothing(round_: int, true: int) -> int:
    return 0


def oscillates(round_: int, true: int) -> int:
    return HUGE if round_ // 10 % 2 else 1


@dataclass
class Played:
    """Results, round by round."""

    seconds: list[float] = field(default_factory=list)
    streams: list[dict[int, int]] = field(default_factory=list)
    """Streams by member whose update was due."""
    counted: list[dict[int, int]] = field(default_factory=list)
    """Streams by member whose update counts."""
    deadlines: list[float] = field(default_factory=list)

    def part(self, *who: int, last: int = 100) -> float:
        """Return the fraction of the streams that these members had in the last rounds."""
        streams = self.streams[-last:]
        assigned = sum(sum(each.values()) for each in streams)
        return sum(each.get(number, 0) for each in streams for number in who) / assigned

    def late(self, who: int, last: int = 100) -> float:
        """Return the fraction of a member's updates that did not count in the last rounds."""
        pairs = list(zip(self.streams[-last:], self.counted[-last:], strict=True))
        due = [pair for pair in pairs if who in pair[0]]
        return sum(who not in counted for _, counted in due) / len(due)


def play(
    speeds: list[float],
    claims: dict[int, Claim] | None = None,
    *,
    rounds: int = 200,
    streams: int = 240,
    max_share: float = 1 / 3,
    later: Callable[[int], list[float]] | None = None,
    idle: tuple[int, ...] = (),
    overhead: float | None = None,
    hindered: Callable[[int, int], float] = lambda round_, number: 1.0,
) -> Played:
    """Simulate members of these speeds, in sequences a second. An `idle` member makes its updates up at
    once. With an `overhead`, seconds that each update takes besides its sequences, members state what
    they measure instead of their true capacity. In round r, member n takes `hindered(r, n)` times as
    long."""
    peers = sorted(PeerId(bytes([n % 256, n // 256]) * 16) for n in range(len(speeds)))
    everybody = Membership(since=dict.fromkeys(peers, 0))
    spec = RoundSpec(sequences=streams, max_share=max_share, collect_min_seconds=0.1)
    rules = AssignmentRules(StreamOrder(1, 1_000_000, streams, 1000, 10), max_share, bool)
    pacing, played = RoundTimeouts(spec), Played()
    measured = [Capacity() for _ in peers]

    def seconds_of(sequences: int, number: int, round_: int) -> float:
        return (sequences / true[number] + (overhead or 0.0)) * hindered(round_, number)

    empty = Record(0, RecordId(bytes(32)), 0, (), (), (), None)
    shares, _ = next_shares(rules, first_shares(everybody), empty, everybody, False)
    begun: dict[tuple[int, int], float] = {}
    now = 0.0
    for round_ in range(1, rounds + 1):
        true = later(round_) if later is not None else speeds
        arrivals: dict[int, float] = {}
        due: dict[int, int] = {}
        for number, peer in enumerate(peers):
            for work in shares.lent_streams:
                if work.peer == peer and work.assigned_in == round_:
                    begun[number, work.due] = now
            run = shares.assignments[0].runs.get(peer)
            if run is not None:
                due[number] = sum(map(len, run))
                took = seconds_of(due[number], number, round_)
                arrivals[number] = 0.0 if number in idle else took
                measured[number].trained(due[number], took, 0.0)
            elif peer in shares.due:
                due[number] = 1
                took = seconds_of(1, number, round_)
                arrivals[number] = max(0.0, begun[number, round_] + took - now)
                measured[number].trained(1, took, 0.0)
        deadline = pacing.collect
        counted = {n: due[n] for n, at in arrivals.items() if at <= deadline}
        seconds = max(arrivals.values()) if len(counted) == len(arrivals) else deadline
        entries = tuple(
            UpdateEntry(
                peers[n],
                ContentId(n.to_bytes(32, "big")),
                1,
                1,
                0.0,
                bytes(64),
                measured[n].stated(pacing.round_seconds)
                if overhead is not None
                else (claims or {}).get(n, honest)(round_, round(true[n] * DAY)),
            )
            for n in sorted(counted)
        )
        record = Record(round_, RecordId(bytes(32)), 0, entries, (), (), None)
        shares, _ = next_shares(rules, shares, record, everybody, False)
        pacing.record_round(
            arrivals=[arrivals[n] for n in counted],
            members=len(due),
            decision=0.1,
            total=seconds,
        )
        now += seconds
        played.seconds.append(seconds)
        played.streams.append(due)
        played.counted.append(counted)
        played.deadlines.append(deadline)
    return played


def of_late(values: list[float]) -> float:
    return statistics.median(values[-50:])


def test_shares_come_to_be_as_speeds_are() -> None:
    speeds = [1.0, 2.0, 4.0, 8.0, 16.0]
    played = play(speeds, max_share=0.6)
    ideal = 240 / sum(speeds)
    assert of_late(played.seconds) < 1.05 * ideal
    for number, speed in enumerate(speeds):
        assert abs(played.part(number) - speed / sum(speeds)) < 0.02
        assert played.late(number) == 0
    # With equal shares the slowest member sets the pace.
    assert of_late(play(speeds, max_share=0.0).seconds) > 4 * ideal


@pytest.mark.parametrize(
    "speeds", [[4.0, 1.0], [4.0, 4.0, 1.0], [8.0, 8.0, 1.0], [16.0, 16.0, 1.0]]
)
def test_in_a_small_swarm_a_slow_one_counts_by_default(speeds: list[float]) -> None:
    played = play(speeds)
    slow = len(speeds) - 1
    assert of_late(played.seconds) < 1.2 * 240 / sum(speeds)
    assert sum(slow in counted for counted in played.counted[-50:]) > 40


def test_shares_follow_speeds_that_change() -> None:
    def later(round_: int) -> list[float]:
        speeds = [1.0, 2.0, 4.0, 8.0, 16.0]
        return speeds if round_ <= 60 else speeds[::-1]

    played = play(later(1), max_share=0.6, later=later)
    assert played.part(0, last=50) > 0.45
    assert of_late(played.seconds) < 1.05 * 240 / 31
    # The member that became slow loses its excess share within a few rounds.
    assert sum(4 not in counted for counted in played.counted[60:80]) <= 6


def test_who_is_a_thousandth_as_fast_counts_now_and_then() -> None:
    """Its update counts in the round for which the stream was lent, and it is late in no other."""
    played = play([10.0, 10.0, 10.0, 10.0, 0.05], rounds=600)
    assert of_late(played.seconds) < 1.1 * 240 / 40
    due = [4 in each for each in played.streams[-300:]]
    assert 5 <= sum(due) <= 150
    assert played.late(4, last=300) <= 0.1


def test_a_boaster_gains_nothing() -> None:
    """It has the capacity of any of six, and claims the largest possible one."""
    alike = play([4.0] * 6)
    boasted = play([4.0] * 6, {0: boasts})
    work = [sum(each.get(0, 0) for each in p.counted[-100:]) for p in (alike, boasted)]
    # Its counted work is less than twice its fair part, all of it computed; and it is late at times.
    assert work[1] < 2 * work[0]
    assert boasted.late(0) > 0.03
    assert boasted.late(0) < 0.15
    # The others never are late, and the deadline changes by less than a quarter.
    assert all(boasted.late(n) == 0 for n in range(1, 6))
    assert of_late(boasted.deadlines) < 1.25 * of_late(alike.deadlines)


def test_a_single_liar_moves_nobodys_deadline() -> None:
    alike = of_late(play([4.0] * 7).deadlines)
    for claim in (boasts, is_modest, claims_nothing, oscillates):
        found = of_late(play([4.0] * 7, {0: claim}).deadlines)
        assert 0.8 * alike < found < 1.25 * alike, claim.__name__


def test_who_claims_nothing_has_little_work_and_little_weight() -> None:
    played = play([4.0] * 6, {0: is_modest}, rounds=300)
    assert played.part(0) < 0.01
    assert sum(0 in each for each in played.streams[-64:]) <= 4
    # The others continue as if it were absent.
    assert of_late(played.seconds) < 1.1 * 240 / 20
    # A member that states no capacity keeps its initial weight.
    assert abs(play([4.0] * 6, {0: claims_nothing}).part(0) - 1 / 6) < 0.05


def test_one_that_oscillates_is_worse_off_than_one_that_does_not() -> None:
    played = play([4.0] * 6, {0: oscillates}, rounds=400)
    work = sum(each.get(0, 0) for each in played.counted[-200:]) / 200
    assert work < 240 / 6
    assert statistics.mean(played.seconds[-200:]) < 1.3 * 240 / 24


def test_fewer_than_a_third_who_claim_everything() -> None:
    """Nineteen of sixty, no faster than others: they are late, and honest members never are."""
    claims: dict[int, Claim] = dict.fromkeys(range(19), boasts)
    played = play([4.0] * 60, claims, streams=600, rounds=150)
    assert all(played.late(n) == 0 for n in range(19, 60))
    assert played.part(*range(19)) < 2 * 19 / 60
    assert of_late(played.deadlines) < 1.25 * of_late(play([4.0] * 60, streams=600).deadlines)


def test_fifty_of_sixty_who_claim_everything_and_do_nothing() -> None:
    """They grow step by step, none has more than a third, and each round is assigned completely."""
    claims: dict[int, Claim] = dict.fromkeys(range(50), boasts)
    idle = tuple(range(50))
    played = play([4.0] * 60, claims, idle=idle, streams=600, rounds=60)
    for before, each in pairwise(played.streams):
        assert max(each.values()) <= 200
        assert all(streams <= 1.5 * before.get(n, 600) + 1 for n, streams in each.items())
    # Five of sixty have at most a third each, and the honest members have the rest.
    few: dict[int, Claim] = dict.fromkeys(range(5), boasts)
    played = play([4.0] * 60, few, idle=tuple(range(5)), streams=600, rounds=60)
    assert max(max(each.values()) for each in played.streams) <= 200
    # If they compute honestly, they are late at once, and each late update halves their share.
    assert max(play([4.0] * 60, few, streams=600, rounds=60).streams[-1].values()) <= 40


@pytest.mark.parametrize("streams", [16, 24, 240])
@pytest.mark.parametrize(
    ("overhead", "slower"), [(0.0, 4.0), (0.0, 12.0), (2.0, 12.0), (10.0, 4.0)]
)
def test_an_equal_member_finds_its_share_within_ten_rounds_of_being_on_time(
    streams: int, overhead: float, slower: float
) -> None:
    """Its computer had other work for forty rounds. An update takes as long as `overhead` sequences
    more than it has: with a small share a member must not look slow because of them."""
    played = play(
        [streams / 8.0] * 3,
        streams=streams,
        overhead=overhead * 8 / streams,
        hindered=lambda round_, number: slower if number == 2 and round_ <= 40 else 1.0,
        rounds=80,
    )
    shares = [each.get(2, 0) / streams for each in played.streams]
    assert statistics.mean(shares[20:40]) < 0.12
    # The first update may have been begun before.
    on_time = [n for n, each in enumerate(played.counted) if n >= 40 and 2 in each][1]
    assert min(shares[on_time + 10 :]) > 0.25
    assert max(shares[on_time:]) < 0.4


@pytest.mark.parametrize("seed", seeds(3))
def test_being_late_now_and_then_does_not_cost_a_member_its_share(seed: int) -> None:
    """Another program makes one update in ten take ten times as long, whatever its size."""
    chance = Random(seed)
    played = play(
        [3.0] * 3,
        streams=24,
        hindered=lambda _, number: 10.0 if number == 2 and chance.random() < 0.1 else 1.0,
        rounds=200,
    )
    assert played.part(2, last=150) > 0.2


def after(weights: dict[PeerId, MemberWeight], *counted: int) -> dict[PeerId, MemberWeight]:
    """Return the weights after a round in which the updates of all were due and these count."""
    peers = [*weights]
    updates = tuple(
        UpdateEntry(peers[n], ContentId(bytes(32)), 1, 1, 1.0, bytes(64), capacity=1000)
        for n in counted
    )
    record = Record(1, RecordId(bytes(32)), 0, updates, (), (), None)
    return dict(next_weights(weights, peers, record, peers, 64))


def test_nobody_is_late_the_first_time_where_a_third_is_missing_at_once() -> None:
    """The cause is the network, or a leader that names its own update alone; a slow member is still
    slow in the next round."""
    before = {PeerId(bytes([n]) * 32): MemberWeight(1000, 1000) for n in range(6)}
    values = lambda weights: [weight.value for weight in weights.values()]  # noqa: E731
    assert values(after(before, 0, 1, 2, 3, 4)) == [1000] * 5 + [500]
    spared = after(before, 0, 1, 2, 3)
    assert values(spared) == [1000] * 6
    # In the next round they are late, whether it lacks as much or less.
    assert values(after(spared, 0, 1, 2, 3)) == [1000] * 4 + [500] * 2
    assert values(after(spared, 0, 1, 2, 3, 4)) == [1000] * 5 + [500]
    # A member whose update counts again has a clean record.
    assert values(after(after(spared, *range(6)), 0, 1)) == [1000] * 6


def test_a_single_one_is_late_however_small_the_swarm() -> None:
    before = {PeerId(bytes([n]) * 32): MemberWeight(1000, 1000) for n in range(2)}
    assert [weight.value for weight in after(before, 0).values()] == [1000, 500]
