"""Members' votes, and how they are counted."""

from __future__ import annotations

from distro_node.protocol.wire.membership import Membership, Votes
from simulation.swarm import identity

PEERS = sorted(identity(index).peer for index in range(5))
MEMBERS = Membership(since=dict.fromkeys(PEERS[:4], 0))
A, B, C, D, STRANGER = PEERS


def test_one_each_is_made_once() -> None:
    votes = Votes.one_each(MEMBERS)
    assert votes is Votes.one_each(MEMBERS)
    assert votes.equal
    assert (votes.total, votes.among([A, B, STRANGER]), votes[STRANGER]) == (4, 2, 0)


def test_members_alone_have_votes() -> None:
    votes = Votes.of({A: 5, B: 0, STRANGER: 7}, MEMBERS)
    assert not votes.equal
    assert (votes.total, votes[A], votes[B], votes[STRANGER]) == (5, 5, 0, 0)


def test_where_no_member_has_any_each_has_one() -> None:
    assert Votes.of({STRANGER: 7}, MEMBERS) is MEMBERS.one_each


def test_of_those_who_have_none_each_counts_as_one() -> None:
    votes = Votes.of({A: 5, B: 1}, MEMBERS)
    assert votes.held_by({A, C, D}).total == 5
    assert votes.held_by({C, D}).total == 2
    assert votes.held_by(()).total == 0


def test_who_decides_alone() -> None:
    votes = Votes.of({A: 5, B: 2, C: 1}, MEMBERS)
    assert not votes.decides_alone(A, "byzantine")
    assert votes.decides_alone(A, "crash")
    assert Votes.of({A: 1}, MEMBERS).decides_alone(A, "byzantine")
    assert not MEMBERS.one_each.decides_alone(A, "crash")
