"""Who leads which slot, where members have different numbers of votes."""

from __future__ import annotations

from collections import Counter

from distro_node.protocol.chain.leaders import Leaders
from distro_node.protocol.wire.membership import Membership, Votes
from simulation.swarm import identity

SWARM = bytes(32)
PEERS = sorted(identity(index).peer for index in range(12))
MEMBERS = Membership(since=dict.fromkeys(PEERS, 0))
VOTES = Votes({PEERS[0]: 600, PEERS[1]: 300, PEERS[2]: 100})


def test_with_one_vote_each_they_take_turns() -> None:
    leaders = Leaders(SWARM, 7, MEMBERS, MEMBERS.one_each)
    circle = MEMBERS.circle(SWARM, 7)
    assert [leaders[slot] for slot in range(1, 25)] == [*circle, *circle]


def test_odd_slots_are_led_in_proportion_to_votes() -> None:
    led = Counter(
        Leaders(SWARM, round_, MEMBERS, VOTES)[slot] for round_ in range(1000) for slot in (1, 3, 5)
    )
    assert set(led) == set(PEERS[:3])
    for peer in led:
        assert abs(led[peer] - 3 * VOTES[peer]) < 150


def test_even_slots_are_led_by_all_in_turns() -> None:
    """A crowd without votes wastes these at most; heirs need them."""
    leaders = Leaders(SWARM, 3, MEMBERS, VOTES)
    assert [leaders[slot] for slot in range(2, 25, 2)] == list(MEMBERS.circle(SWARM, 3))


def test_a_vote_more_or_less_draws_nothing_anew() -> None:
    """Or the maker of a record would try which looks to put into it until it leads again."""
    changed = 0
    for more in range(1, 51):
        varied = Votes({**VOTES.by_peer, PEERS[1]: 300 + more % 10})
        changed += sum(
            Leaders(SWARM, round_, MEMBERS, varied)[1] != Leaders(SWARM, round_, MEMBERS, VOTES)[1]
            for round_ in range(20)
        )
    assert changed < 50


def test_no_identity_stands_where_many_points_fall() -> None:
    """The order on the line is another one in each round: rounds with the same leader have others who
    have as many votes, too."""
    votes = Votes(dict.fromkeys(PEERS, 10))
    led = Counter(Leaders(SWARM, round_, MEMBERS, votes)[1] for round_ in range(600))
    assert set(led) == set(PEERS)
    assert max(led.values()) < 100
