"""Shares are disjoint and cover the round, and a member keeps its lanes for as long as a span lasts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from distro_node.crypto.identity import PeerId
from distro_node.protocol.sampling.assignment import lanes_of, lost_lanes, share
from distro_node.protocol.sampling.deal import Deal
from distro_node.protocol.sampling.sampler import Order
from distro_node.protocol.wire.membership import Membership
from hypothesis import given, settings
from hypothesis import strategies as st


def members(count: int) -> Membership:
    return Membership(
        since={PeerId(bytes([i * 37 % 256]) + bytes(30) + bytes([i])): 0 for i in range(count)}
    )


@settings(deadline=None)
@given(
    st.integers(0, 2**63 - 1),
    st.integers(1, 500),
    st.integers(1, 150),
    st.integers(1, 12),
    st.integers(1, 2**40),
)
def test_shares_are_together_exactly_the_round(
    seed: int, samples: int, lanes: int, count: int, round_: int
) -> None:
    order = Order(seed, samples, lanes, max(1, samples // lanes), max(1, samples // lanes))
    everybody, deal = members(count), Deal(round_)
    shares = [share(order, [deal], everybody, peer) for peer in everybody.peers]
    dealt = Counter(sample for mine in shares for sample in mine)
    assert dealt == Counter(order.samples_at(np.arange(lanes), deal.rows(lanes)))
    sizes = [len(mine) for mine in shares]
    assert max(sizes) - min(sizes) <= 1


def test_a_member_keeps_its_lanes_while_a_block_lasts_and_the_remainder_goes_round() -> None:
    order, everybody = Order(9, 1000, 4, 50, 10), members(3)
    for peer in everybody.peers:
        lanes = [lanes_of(order, everybody, peer, round_) for round_ in range(1, 301)]
        for first in range(0, 300, 50):
            assert len(set(lanes[first : first + 50])) == 1
        assert sorted(len(lanes[first]) for first in range(0, 300, 50)) == [1, 1, 1, 1, 2, 2]


def test_with_fewer_lanes_than_members_everybody_takes_turns() -> None:
    order, everybody = Order(0, 1000, 2, 500, 500), members(5)
    sizes = {
        peer: [len(lanes_of(order, everybody, peer, round_)) for round_ in range(1, 6)]
        for peer in everybody.peers
    }
    assert all(sorted(each) == [0, 0, 0, 1, 1] for each in sizes.values())
    assert [sum(each[round_] for each in sizes.values()) for round_ in range(5)] == [2] * 5


def test_a_member_trains_on_its_part_of_a_large_corpus() -> None:
    """Of 256 spans each of four members reads a quarter in an epoch, and hardly any chunk twice."""
    chunk = 16
    order, everybody = Order(1, 256 * 8 * chunk, 32, 8 * chunk, chunk), members(4)
    deals = [Deal(round_) for round_ in range(1, 8 * 8 * chunk + 1)]
    for peer in everybody.peers:
        touched = {sample // chunk for sample in share(order, deals, everybody, peer)}
        assert len(touched) == 256 * 8 / 4


def test_what_a_record_leaves_untrained() -> None:
    order, everybody = Order(0, 1000, 10, 100, 100), members(4)
    late = everybody.peers[1]
    counted = [peer for peer in everybody.peers if peer != late]
    assert lost_lanes(order, everybody, counted, 7) == [lanes_of(order, everybody, late, 7)]
    assert lost_lanes(order, everybody, everybody.peers, 7) == []
    assert sum(map(len, lost_lanes(order, everybody, (), 7))) == 10


def test_who_is_no_member_has_no_lanes() -> None:
    with pytest.raises(ValueError, match="not in"):
        lanes_of(Order(0, 10, 4, 2, 2), members(2), PeerId(bytes(31) + b"x"), 1)
