"""Untrained samples are assigned again: no row of a stream is lost, none is trained twice."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from distro_node.protocol.sampling.assignment import AssignmentRules, assign
from distro_node.protocol.sampling.member_weights import MemberWeight
from distro_node.protocol.sampling.sampler import StreamOrder
from distro_node.protocol.sampling.stream_cursor import StreamCursors
from distro_node.protocol.wire.membership import Membership
from seeds import seeds
from simulation.chain import Chain
from simulation.swarm import identity

# Private here: `_cursors`: which objects are kept is not visible otherwise.

EVERYBODY = [identity(index).peer for index in range(40)]


@pytest.mark.parametrize("ahead", [False, True], ids=["plain", "overlap"])
@pytest.mark.parametrize("seed", seeds(12, 2))
def test_every_row_of_a_stream_is_trained_once_with_churn(seed: int, ahead: bool) -> None:
    """Members join, leave and fail at random; some rounds count no update, some have fewer streams than
    members. Then the failures stop: every row assigned so far was trained once, in each stream."""
    chance = random.Random(seed)
    streams = chance.choice([1, 5, 16, 32, 61])
    order = StreamOrder(7, 1000, streams, chance.choice([1, 7, 16]), 16)
    trained: Counter[tuple[int, int]] = Counter()
    begins = [StreamCursors(1)]
    if ahead:
        begins.append(begins[0].next_cursors(begins[0], [], streams))
    for round_ in range(1, 200):
        membership = Membership(
            since=dict.fromkeys(chance.sample(EVERYBODY, chance.randint(1, 30)), 0)
        )
        failing = chance.choice([0.0, 0.1, 0.5, 1.0]) if round_ < 150 else 0.0
        counted = {peer for peer in membership.peers if chance.random() >= failing}
        cursors = begins.pop(0)
        rows = cursors.rows(streams).tolist()
        rules, weights = (
            AssignmentRules(order, 1 / 3, bool),
            dict.fromkeys(membership.peers, MemberWeight()),
        )
        runs = assign(rules, membership, weights, (), None, round_).runs
        for peer in counted:
            trained.update((stream, rows[stream]) for run in runs.get(peer, ()) for stream in run)
        lost = [run for peer, own in runs.items() if peer not in counted for run in own]
        begins.append((begins[-1] if begins else cursors).next_cursors(cursors, lost, streams))
        # An assigned sample is trained or in progress, at any time.
        under_way = {
            (stream, row)
            for each in begins
            for stream, row in enumerate(each.rows(streams).tolist())
        }
        assert len(under_way) == len(begins) * streams
        assigned = {
            (stream, row)
            for stream, end in enumerate(begins[-1].fresh(streams))
            for row in range(end)
        }
        assert set(trained) | under_way == assigned
        assert not set(trained) & under_way
    assert set(trained.values()) == {1}


def test_rounds_that_lose_nothing_have_nothing_to_remember() -> None:
    cursors = StreamCursors(1)
    for round_ in range(1, 5):
        assert cursors == StreamCursors(round_)
        assert cursors.rows(3).tolist() == [round_ - 1] * 3
        assert cursors.fresh(3).tolist() == [round_] * 3
        cursors = cursors.next_cursors(cursors, [], 3)


def test_a_stream_that_lost_a_sample_is_behind_from_then_on() -> None:
    first = StreamCursors(1)
    second = first.next_cursors(first, [range(1, 3)], 4)
    assert second.rows(4).tolist() == [1, 0, 0, 1]
    third = second.next_cursors(second, [], 4)
    assert third.rows(4).tolist() == [2, 1, 1, 2]
    # Equal states share memory.
    assert third.behind is second.behind is second.waiting is third.waiting
    fourth = third.next_cursors(third, [range(2, 4)], 4)
    assert fourth.rows(4).tolist() == [3, 2, 1, 2]


def test_a_round_ahead_a_lost_sample_is_assigned_two_rounds_later() -> None:
    first = StreamCursors(1)
    second = first.next_cursors(first, [], 2)
    third = second.next_cursors(first, [range(1)], 2)
    fourth = third.next_cursors(second, [], 2)
    assert [cursors.rows(2).tolist() for cursors in (first, second, third, fourth)] == [
        [0, 0], [1, 1], [0, 2], [2, 3],
    ]  # fmt: skip
    # Lost once more, while others succeed.
    fifth = fourth.next_cursors(third, [range(1)], 2)
    assert fifth.rows(2).tolist() == [0, 4]
    assert fifth.next_cursors(fourth, [], 2).rows(2).tolist() == [3, 5]


def test_an_empty_record_returns_everything() -> None:
    cursors = StreamCursors(1).next_cursors(StreamCursors(1), [range(3)], 3)
    assert cursors.round == 2
    assert cursors.rows(3).tolist() == [0, 0, 0]


@pytest.mark.parametrize("overlap", [False, True])
def test_the_ledger_knows_it_of_every_round(overlap: bool) -> None:
    chain = Chain(4, overlap=overlap)
    ledger = chain.ledger
    absent = chain.membership.peers[0]
    lost = []
    for round_ in range(1, 6):
        some = [chain.update(peer) for peer in chain.membership.peers if peer != absent]
        if round_ % 2:
            lost += ledger.assignments.assignment(round_).runs[absent]
        chain.grow(updates=some if round_ % 2 else None)
    last = ledger.assignments.cursors(6 + overlap)
    expected = np.zeros(64, int)
    for streams in lost:
        expected[streams.start : streams.stop] += 1
    # Each of three lost samples was assigned again, or is now, so its stream is that far behind.
    assert (6 + overlap - last.fresh(64)).tolist() == expected.tolist()
    shorter = ledger.truncated(3)
    for number in range(1, 4 + overlap):
        assert shorter.assignments.cursors(number) == ledger.assignments.cursors(number)
    assert len(ledger.truncated(0).assignments._cursors) == 1 + overlap


def test_what_was_assigned_long_ago_returns_as_soon_as_its_stream_can() -> None:
    """Stream 1 lost the sample of row 0, which a member had three rounds for, and in the same round the
    sample assigned meanwhile: both are assigned again, one after the other."""
    begins = [StreamCursors(1)]
    for _ in range(2):
        begins.append(begins[-1].next_cursors(begins[-1], [], 2))
    fourth = begins[2].next_cursors(begins[2], [range(1, 2)], 2, [(1, 0)])
    assert (fourth.rows(2).tolist(), fourth.owed) == ([3, 2], ((1, 0),))
    fifth = fourth.next_cursors(fourth, [], 2)
    assert (fifth.rows(2).tolist(), fifth.owed) == ([4, 0], ())
    # Then it continues with samples that were never assigned.
    assert fifth.next_cursors(fifth, [], 2).rows(2).tolist() == [5, 3]
    # If no other sample was lost, it is assigned at once.
    assert begins[2].next_cursors(begins[2], [], 2, [(0, 0)]).rows(2).tolist() == [0, 3]
