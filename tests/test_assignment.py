"""Shares are disjoint, cover the round, and an epoch visits every sample once."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from distro_node.crypto.identity import PeerId
from distro_node.protocol.assignment import samples_at, share
from hypothesis import given
from hypothesis import strategies as st


def peers(count: int) -> list[PeerId]:
    return [
        PeerId(bytes([index * 37 % 256]) + bytes(30) + bytes([index])) for index in range(count)
    ]


@given(
    st.integers(0, 2**63 - 1),
    st.integers(1, 60),
    st.integers(0, 500),
    st.integers(0, 150),
    st.integers(1, 12),
    st.integers(0, 2**40),
)
def test_shares_are_together_exactly_the_round(
    seed: int, samples: int, cursor: int, sequences: int, members: int, round_number: int
) -> None:
    everybody = peers(members)
    middle = cursor + sequences // 3
    positions = [range(cursor, middle), range(middle, cursor + sequences)]
    shares = [
        share(seed, samples, positions, everybody[::-1], me, round_number) for me in everybody
    ]
    dealt = Counter(index for mine in shares for index in mine)
    assert dealt == Counter(samples_at(seed, samples, range(cursor, cursor + sequences)))
    sizes = [len(mine) for mine in shares]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(0, 2**63 - 1), st.integers(1, 300), st.integers(0, 5))
def test_an_epoch_visits_every_sample_once(seed: int, samples: int, epoch: int) -> None:
    visited = samples_at(seed, samples, range(epoch * samples, (epoch + 1) * samples))
    assert sorted(visited) == list(range(samples))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {
        tuple(samples_at(seed, 50, range(epoch * 50, epoch * 50 + 50)))
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(orders) == 9


def test_the_order_looks_random() -> None:
    order = samples_at(1, 10_000, range(10_000))
    fixed = sum(place == index for place, index in enumerate(order))
    steps = sum(abs(a - b) == 1 for a, b in pairwise(order))
    # Of a random order one expects 1 and 2, with a Poisson spread.
    assert fixed < 10
    assert steps < 15
    # Each half of the places draws evenly from each half of the samples: 2,500 ± 25.
    assert abs(sum(index < 5000 for index in order[:5000]) - 2500) < 150


def test_the_remainder_goes_round() -> None:
    everybody = peers(3)
    for me in everybody:
        sizes = [
            len(share(9, 100, [range(4 * r, 4 * r + 4)], everybody, me, r)) for r in range(1, 7)
        ]
        assert sorted(sizes) == [1, 1, 1, 1, 2, 2]


def test_fewer_sequences_than_members() -> None:
    everybody = peers(5)
    sizes = [len(share(0, 10, [range(2)], everybody, me, 7)) for me in everybody]
    assert sorted(sizes) == [0, 0, 0, 1, 1]


def test_a_large_corpus_costs_nothing() -> None:
    indices = samples_at(3, 10**9 + 7, range(10**15, 10**15 + 1000))
    assert len(set(indices)) == 1000
    assert max(indices) < 10**9 + 7
    # A quarter each, give or take: the whole range is used.
    assert 180 < sum(index < 2.5e8 for index in indices) < 320
    assert len(samples_at(3, 2**56, range(2**60, 2**60 + 5))) == 5


def test_frozen_order() -> None:
    assert samples_at(7, 1000, range(995, 1005)) == [467, 385, 587, 566, 840, 73, 194, 256, 5, 960]
    assert samples_at(7, 2**33, range(1, 9, 3)) == [2975947703, 3674357898, 8554227861]


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="not among"):
        share(0, 10, [range(4)], peers(2), PeerId(bytes(32)[:31] + b"x"), 1)
    with pytest.raises(ValueError, match="samples"):
        samples_at(0, 0, range(1))
    with pytest.raises(ValueError, match="count from 0"):
        samples_at(0, 5, range(-1, 1))
    with pytest.raises(ValueError, match="seed"):
        samples_at(-1, 5, range(2))
