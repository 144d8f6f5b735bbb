"""Committees: every member in one, no effect of a single byzantine member, and rarer draws of byzantine
ones."""

from __future__ import annotations

import random

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.committee.draw import (
    AggregatorStanding,
    agreed_aggregate,
    dissenters,
    draw_committees,
    may_aggregate,
)
from hypothesis import given
from hypothesis import strategies as st

PEERS = [PeerId(content_id(b"peer" + bytes([number]))) for number in range(64)]
TRUE, FALSE, OTHER = (content_id(text) for text in (b"true", b"false", b"other"))
A, B, C, D = PEERS[:4]


@given(st.integers(1, 64), st.integers(2, 5), st.integers(1, 30), st.binary(max_size=8))
def test_everybody_is_in_one_committee_of_at_least_the_size(count, size, most, seed):
    committees = draw_committees(PEERS[:count], size=size, most=most, seed=seed)

    assert sorted(peer for committee in committees for peer in committee) == sorted(PEERS[:count])
    lengths = [len(committee) for committee in committees]
    assert max(lengths) - min(lengths) <= 1
    assert min(lengths) >= min(size, count)
    assert len(committees) == max(1, min(count // size, most))


def test_another_seed_draws_others_and_the_order_of_members_makes_no_difference():
    first = draw_committees(PEERS, size=3, most=100, seed=b"a")

    assert draw_committees(PEERS[::-1], size=3, most=100, seed=b"a") == first
    assert draw_committees(PEERS, size=3, most=100, seed=b"b") != first


@pytest.mark.parametrize(
    ("said", "present", "counts"),
    [
        ({A: TRUE, B: TRUE, C: TRUE}, {A, B, C}, True),
        ({A: TRUE, B: TRUE}, {A, B, C}, True),
        # One alone, while other members could aggregate.
        ({A: TRUE}, {A, B, C}, False),
        ({A: TRUE}, {A, B}, False),
        # The others of its committee are gone: none is left to contradict it.
        ({A: TRUE}, {A, D}, False),
        # One alone in the swarm.
        ({A: TRUE}, {A}, True),
        # A majority does not overrule a minority.
        ({A: TRUE, B: TRUE, C: FALSE}, {A, B, C}, False),
        ({A: TRUE, B: FALSE}, {A, B, C}, False),
        ({}, {A, B, C}, False),
        ({}, {D}, False),
        # Aggregates of other members do not matter.
        ({A: TRUE, D: TRUE}, {A, B, C, D}, False),
        ({A: TRUE, B: TRUE, D: FALSE}, {A, B, C, D}, True),
    ],
)
def test_an_aggregate_counts_that_two_announce_and_nobody_contradicts(said, present, counts):
    assert agreed_aggregate((A, B, C), said, present) == (TRUE if counts else None)


@pytest.mark.parametrize(
    ("said", "penalised"),
    [
        ({A: TRUE, B: TRUE, C: TRUE}, set()),
        ({A: TRUE, B: TRUE}, set()),
        ({A: TRUE}, set()),
        ({}, set()),
        ({A: TRUE, B: TRUE, C: FALSE}, {C}),
        # It is unknown which one is right.
        ({A: TRUE, B: FALSE}, {A, B}),
        ({A: TRUE, B: FALSE, C: OTHER}, {A, B, C}),
        ({A: TRUE, B: TRUE, D: FALSE}, set()),
    ],
)
def test_who_is_penalised(said, penalised):
    assert dissenters((A, B, C), said) == penalised


def test_each_strike_keeps_away_for_twice_as_long_up_to_a_bound():
    standing, absent = AggregatorStanding(), []
    for _ in range(12):
        epoch = standing.back
        standing = standing.penalised(epoch)
        absent.append(standing.back - epoch - 1)

    assert absent == [2, 4, 8, 16, 32, 64, 128, 256, 256, 256, 256, 256]


def test_serving_makes_good():
    standing = AggregatorStanding().penalised(0).penalised(3)

    assert standing.served().penalties == 1
    assert standing.served().served().served().penalties == 0
    assert standing.served().back == standing.back


def test_where_most_are_out_everybody_aggregates():
    out = dict.fromkeys((A, B), AggregatorStanding().penalised(5))

    assert may_aggregate([A, B, C], out, 6) == [A, B, C]
    assert may_aggregate([A, B, C, D], out, 6) == [C, D]
    assert may_aggregate([A, B], out, 8) == [A, B]


def test_who_is_new_waits_and_who_is_back_waits_no_less_than_before():
    assert AggregatorStanding().newly_admitted(3) == AggregatorStanding(0, 8)
    penalised = AggregatorStanding().penalised(0).penalised(0).penalised(0)
    assert penalised.newly_admitted(1) == penalised
    assert penalised.newly_admitted(9).back == 14


@pytest.mark.parametrize("share", [4, 3])
def test_liars_are_soon_hardly_ever_drawn(share):
    """A quarter, or a third, of 36 members announce the same false aggregate, in every committee and
    step."""
    members = PEERS[:36]
    liars = set(members[: len(members) // share])
    standings: dict[PeerId, AggregatorStanding] = {}
    silent, wrong = [], []

    for epoch in range(64):
        seed = random.Random(epoch).randbytes(32)
        able = may_aggregate(members, standings, epoch)
        committees = draw_committees(able, size=3, most=100, seed=seed)
        said = {peer: FALSE if peer in liars else TRUE for peer in able}
        counted = [agreed_aggregate(committee, said, members) for committee in committees]
        silent.append(counted.count(None) / len(committees))
        wrong.append(counted.count(FALSE) / len(committees))
        penalised = {peer for committee in committees for peer in dissenters(committee, said)}
        for peer in able:
            known = standings.get(peer, AggregatorStanding())
            standings[peer] = known.penalised(epoch) if peer in penalised else known.served()

    assert silent[0] > 0.3
    assert sum(silent[32:]) / 32 < 0.06
    assert sum(wrong) / 64 < 0.02
    honest_out = sum(standings[peer].back > 64 for peer in members if peer not in liars)
    assert honest_out <= 3
