"""Shares are disjoint and cover the round, in proportion to weights, and members keep their streams."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from distro_node.crypto.identity import PeerId
from distro_node.protocol.sampling.apportionment import apportion, max_streams, time_of
from distro_node.protocol.sampling.assignment import (
    MOST_ROUNDS,
    Assignment,
    AssignmentRules,
    LentStream,
    assign,
    samples_of,
)
from distro_node.protocol.sampling.member_weights import MemberWeight
from distro_node.protocol.sampling.sampler import StreamOrder
from distro_node.protocol.sampling.stream_cursor import StreamCursors
from distro_node.protocol.wire.membership import Membership
from hypothesis import given, settings
from hypothesis import strategies as st


def members(count: int) -> Membership:
    return Membership(
        since={PeerId(bytes([i * 37 % 256]) + bytes(30) + bytes([i])): 0 for i in range(count)}
    )


def always(round: int) -> bool:
    return True


def assigned(
    order: StreamOrder,
    everybody: Membership,
    round_: int,
    values: Sequence[int] | None = None,
    *,
    max_share: float = 1 / 3,
    busy: Collection[PeerId] = (),
    trains: Callable[[int], bool] = always,
    before: Assignment | None = None,
) -> Assignment:
    values = values or [0] * len(everybody)
    weights = {
        peer: MemberWeight(value) for peer, value in zip(everybody.peers, values, strict=True)
    }
    return assign(
        AssignmentRules(order, max_share, trains), everybody, weights, busy, before, round_
    )


def streams_in(runs: Iterable[range]) -> list[int]:
    return [stream for run in runs for stream in run]


def streams_of(assignment: Assignment) -> Counter[int]:
    """Count how often each stream is assigned."""
    streams = Counter(stream for own in assignment.runs.values() for run in own for stream in run)
    streams.update(work.stream for work in assignment.lent_streams)
    return streams


def sizes(everybody: Membership, assignment: Assignment) -> list[int]:
    return [sum(map(len, assignment.streams_of(peer))) for peer in everybody.peers]


@settings(deadline=None)
@given(
    st.integers(0, 2**63 - 1),
    st.integers(1, 500),
    st.integers(1, 150),
    st.integers(1, 12),
    st.integers(1, 2**30),
)
def test_shares_are_together_exactly_the_round(
    seed: int, samples: int, streams: int, count: int, round_: int
) -> None:
    order = StreamOrder(
        seed, samples, streams, max(1, samples // streams), max(1, samples // streams)
    )
    everybody, cursors = members(count), StreamCursors(round_)
    assignment = assigned(order, everybody, round_)
    shares = [
        samples_of(order, [cursors], [assignment.streams_of(peer)]) for peer in everybody.peers
    ]
    trained = Counter(sample for mine in shares for sample in mine)
    assert trained == Counter(order.samples_at(np.arange(streams), cursors.rows(streams)))
    counts = [len(mine) for mine in shares]
    assert max(counts) - min(counts) <= 1


@given(
    st.integers(1, 300),
    st.lists(st.integers(1, 2**40), min_size=1, max_size=24),
    st.integers(1, 2**30),
    st.floats(0.0, 1.0),
    st.data(),
)
def test_every_stream_is_assigned_once_whatever_the_weights(
    streams: int, values: list[int], round_: int, max_share: float, data: st.DataObject
) -> None:
    order, everybody = StreamOrder(1, 1000, streams, 3, 3), members(len(values))
    busy = data.draw(st.sets(st.sampled_from(everybody.peers)))
    assignment = assigned(order, everybody, round_, values, max_share=max_share, busy=busy)
    assert streams_of(assignment) == Counter(range(streams))
    # No member has both kinds, none has more than allowed, and no busy member gets more.
    free = [peer for peer in everybody.peers if peer not in busy] or list(everybody.peers)
    late = [work.peer for work in assignment.lent_streams]
    assert len(set(late)) == len(late)
    assert not set(late) & set(assignment.runs)
    assert {*late, *assignment.runs} <= set(free)
    equal = -(-streams // len(free))
    most = max(int(streams * max_share), 2 * equal) if max_share else equal
    assert max(sizes(everybody, assignment)) <= most
    assert all(round_ < work.due < round_ + MOST_ROUNDS for work in assignment.lent_streams)
    assert all(work.assigned_in == round_ for work in assignment.lent_streams)


@given(st.integers(1, 60), st.lists(st.integers(1, 50), min_size=1, max_size=8))
def test_nobody_could_be_done_sooner(streams: int, values: list[int]) -> None:
    """Assigning one by one from zero gives the same, and moving any stream never makes the slowest
    sooner."""
    most = max_streams(streams, len(values), 1 / 3)
    given = apportion(streams, tuple(values), most)
    slow = [0] * len(values)
    for _ in range(streams):
        open_ = [index for index in range(len(values)) if slow[index] < most]
        slow[min(open_, key=lambda index: (time_of(slow[index] + 1, values[index]), index))] += 1
    assert list(given) == slow
    last = max(time_of(n, value) for n, value in zip(given, values, strict=True))
    for index, value in enumerate(values):
        assert given[index] == most or time_of(given[index] + 1, value) >= last


def test_twice_as_fast_is_twice_as_much() -> None:
    order, everybody = StreamOrder(1, 10_000, 60, 10, 10), members(4)
    assignment = assigned(order, everybody, 1, [10, 20, 40, 80], max_share=0.6)
    assert sizes(everybody, assignment) == [4, 8, 16, 32]


def test_nobody_has_more_than_a_third_unless_they_are_too_few() -> None:
    """Otherwise twice an equal share, or no member could have less than that."""
    order = StreamOrder(1, 10_000, 60, 10, 10)
    for count, most in ((1, 60), (3, 40), (4, 30), (5, 24), (6, 20), (12, 20)):
        everybody = members(count)
        counts = sizes(everybody, assigned(order, everybody, 1, [1 << 40, *[1] * (count - 1)]))
        assert max(counts) == most
        assert sum(counts) == 60
    two = members(2)
    assert sizes(two, assigned(order, two, 1, [90, 10])) == [54, 6]
    # All have the same where the manifest requires it.
    three = members(3)
    assert sizes(three, assigned(order, three, 1, [90, 9, 1], max_share=0.0)) == [20, 20, 20]


def test_who_is_slower_than_a_sequence_a_round_has_several_rounds_time() -> None:
    """Eight streams, speeds 4 : 4 : 4 : 1: a round takes the time of three streams of a fast member, in
    which the slow one computes three quarters of a stream."""
    order, everybody = StreamOrder(1, 10_000, 8, 10, 10), members(4)
    values = [4, 4, 4, 1]
    slow = everybody.peers[3]
    first = assigned(order, everybody, 5, values, max_share=0.5)
    (work,) = first.lent_streams
    assert (work.peer, work.assigned_in, work.due) == (slow, 5, 6)
    assert sizes(everybody, first) == [2, 3, 2, 1]
    # Meanwhile the others have its stream, which was the last of one of them.
    second = assigned(order, everybody, 6, values, max_share=0.5, busy=[slow])
    assert not second.lent_streams
    assert sizes(everybody, second) == [3, 3, 2, 0]
    # No other member's streams move.
    for peer in everybody.peers[:3]:
        assert set(streams_in(first.runs[peer])) <= set(streams_in(second.runs[peer]))
    # In the last rounds of a run, no assignment would be due after the end.
    last = assigned(order, everybody, 5, values, max_share=0.5, trains=lambda round_: round_ <= 5)
    assert not last.lent_streams
    assert sizes(everybody, last) == [3, 3, 2, 0]


def test_of_too_many_slow_ones_not_always_the_same_wait() -> None:
    order, everybody = StreamOrder(1, 10_000, 4, 10, 10), members(12)
    values = [1000, 1000, 1000, *[1] * 9]
    served: Counter[PeerId] = Counter()
    works: list[LentStream] = []
    for round_ in range(1, 400):
        busy = {work.peer for work in works if work.due >= round_}
        made = assigned(order, everybody, round_, values, max_share=0.5, busy=busy).lent_streams
        assert len(made) <= 2
        works += made
        served.update(work.peer for work in made)
    assert len(served) == 9
    assert min(served.values()) >= 4


def test_a_member_keeps_its_streams_while_a_block_lasts_and_the_remainder_rotates() -> None:
    order, everybody = StreamOrder(9, 1000, 4, 50, 10), members(3)
    rounds = [assigned(order, everybody, round_) for round_ in range(1, 301)]
    for peer in everybody.peers:
        streams = [each.streams_of(peer) for each in rounds]
        for first in range(0, 300, 50):
            assert len(set(streams[first : first + 50])) == 1
        assert sorted(len(streams_in(streams[first])) for first in range(0, 300, 50)) == [
            1,
            1,
            1,
            1,
            2,
            2,
        ]


def test_with_fewer_streams_than_members_everybody_takes_turns() -> None:
    order, everybody = StreamOrder(0, 1000, 2, 500, 500), members(5)
    rounds = [sizes(everybody, assigned(order, everybody, round_)) for round_ in range(1, 6)]
    assert all(sorted(each) == [0, 0, 0, 1, 1] for each in zip(*rounds, strict=True))
    assert [sum(each) for each in rounds] == [2] * 5


def test_a_member_trains_on_its_part_of_a_large_corpus() -> None:
    """Of 256 spans each of four members reads a quarter in an epoch, and hardly any chunk twice."""
    chunk = 16
    order, everybody = StreamOrder(1, 256 * 8 * chunk, 32, 8 * chunk, chunk), members(4)
    begins = [StreamCursors(round_) for round_ in range(1, 8 * 8 * chunk + 1)]
    rounds = [assigned(order, everybody, cursors.round) for cursors in begins]
    for peer in everybody.peers:
        streams = [each.streams_of(peer) for each in rounds]
        touched = {sample // chunk for sample in samples_of(order, begins, streams)}
        assert len(touched) == 256 * 8 / 4


def moved(before: Assignment, after: Assignment) -> int:
    """Return how many streams have moved to another member."""
    had = {peer: set(streams_in(own)) for peer, own in before.runs.items()}
    return sum(len(set(streams_in(own)) - had.get(peer, set())) for peer, own in after.runs.items())


def test_a_changed_weight_moves_no_more_streams_than_it_must() -> None:
    """One of sixteen shrinks by half: eight of its streams go to others, and no other stream moves.
    Each move costs a chunk."""
    order, everybody = StreamOrder(1, 100_000, 256, 100, 10), members(16)
    values = [100] * 16
    for index in range(16):
        smaller = [*values[:index], 50, *values[index + 1 :]]
        whole = assigned(order, everybody, 1, values)
        shrunk = assigned(order, everybody, 2, smaller, before=whole)
        assert moved(whole, shrunk) == 8
        # And back; then the span ends, and all have other streams.
        again = assigned(order, everybody, 3, values, before=shrunk)
        assert moved(shrunk, again) == 8
        assert moved(again, assigned(order, everybody, 101, values, before=again)) >= 240


@given(st.integers(0, 2**32))
def test_streams_move_as_little_as_can_be_with_any_changes(seed: int) -> None:
    chance = random.Random(seed)
    order = StreamOrder(1, 100_000, chance.randint(1, 80), 1000, 10)
    before: Assignment | None = None
    peers = list(members(12).since)
    for round_ in range(1, 12):
        everybody = Membership(since=dict.fromkeys(chance.sample(peers, chance.randint(1, 12)), 0))
        if order.streams < len(everybody):
            before = None
            continue
        values = [chance.choice([1, 10, 40, 100]) for _ in everybody.peers]
        now = assigned(order, everybody, round_, values, before=before)
        assert streams_of(now) == Counter(range(order.streams))
        if before is not None:
            had, has = (
                {peer: len(streams_in(own)) for peer, own in each.before_lending.items()}
                for each in (before, now)
            )
            needed = sum(max(0, count - had.get(peer, 0)) for peer, count in has.items())
            homes = (Assignment(1, each.before_lending) for each in (before, now))
            assert moved(*homes) == needed
        before = now


def test_blocks_of_one_stream() -> None:
    order, everybody = StreamOrder(0, 10, 1, 2, 2), members(2)
    rounds = [assigned(order, everybody, round_, [8, 1]) for round_ in range(1, 5)]
    for before, after in pairwise(rounds):
        assert streams_of(before) == streams_of(after) == Counter([0])
    with pytest.raises(KeyError):
        rounds[0].runs[PeerId(bytes(31) + b"x")]
