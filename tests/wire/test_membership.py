"""Membership, quorums and masks."""

from __future__ import annotations

import pytest
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.membership import (
    FaultModel,
    Membership,
    MembershipChange,
    founding,
    quorum,
)
from hypothesis import given
from hypothesis import strategies as st
from simulation.chain import Chain
from simulation.swarm import identity

EVERYBODY = [identity(index).peer for index in range(20)]


@pytest.mark.parametrize(
    ("model", "least"),
    [
        ("byzantine", [1, 2, 3, 3, 4, 5, 5, 6, 7, 7]),
        ("crash", [1, 2, 2, 3, 3, 4, 4, 5, 5, 6]),
    ],
)
def test_quorums_of_one_to_ten(model: FaultModel, least: list[int]) -> None:
    assert [quorum(model, members) for members in range(1, 11)] == least


@given(st.integers(1, 4096))
def test_two_quorums_share_enough(members: int) -> None:
    byzantine, crash = quorum("byzantine", members), quorum("crash", members)
    assert 3 * byzantine > 2 * members >= 3 * (byzantine - 1)
    assert 2 * crash > members >= 2 * (crash - 1)
    # If less than a third are byzantine, two quorums share an honest member.
    liars = (members - 1) // 3
    assert 2 * byzantine - members > liars
    assert byzantine <= members - liars


@given(st.sets(st.sampled_from(EVERYBODY), min_size=1), st.sets(st.sampled_from(EVERYBODY)))
def test_masks_mark_members(members: set, marked: set) -> None:
    membership = Membership(since=dict.fromkeys(members, 0))
    mask = membership.mask(marked)
    assert len(mask) == -(-len(members) // 8)
    bits = membership.bits(mask)
    assert {peer for peer in membership.peers if bits & membership.bit(peer)} == members & marked


@pytest.mark.parametrize("mask", [b"", b"\0", b"\0\0\0", b"\0\x02", b"\xff\xff"])
def test_masks_of_another_membership(mask: bytes) -> None:
    membership = Membership(since=dict.fromkeys(EVERYBODY[:9], 0))
    assert membership.bits(b"\xff\x01") == 0x1FF
    with pytest.raises(ProtocolError) as caught:
        membership.bits(mask)
    assert caught.value.reason == "invalid"


def test_no_proposer_chooses_who_leads_next() -> None:
    """Even with records that differ in what their maker may vary, here the tokens it claims."""
    chain = Chain(7)
    me = chain.leaders[0]
    others = [chain.update(peer) for peer in chain.membership.peers if peer != me]
    seen = set()
    for tokens in range(20):
        varied = chain.fork()
        varied.grow(updates=[*others, varied.update(me, tokens=tokens)])
        seen.add((varied.ledger.head, varied.leaders))
    assert len({head for head, _ in seen}) == 20
    assert len({leaders for _, leaders in seen}) == 1


def test_records_change_the_membership() -> None:
    chain = Chain(4)
    a, b = identity(1).peer, identity(9).peer
    before = chain.membership
    chain.grow(departed=[chain.leave(1)], admitted=[chain.admission(9)])
    after = chain.membership
    assert (a in before, a in after, b in before, b in after) == (True, False, False, True)
    assert after.since[b] == 1
    assert after.gone == {a: 1}
    chain.grow(admitted=[chain.admission(1)])
    assert chain.membership.gone == {}
    assert chain.membership.since[a] == 2


def test_departures_are_remembered_as_long_as_requests_are_good() -> None:
    membership = Membership(since=dict.fromkeys(EVERYBODY[:3], 0))
    chain = Chain(3)
    gone = chain.record(departed=[chain.silence(1)])
    membership = membership.changed(MembershipChange.of(gone))
    later = gone.round
    while membership.gone:
        later += 1
        membership = membership.changed(MembershipChange.of(chain.record(round=later, updates=())))
    # A request of the departure's round may be used up to here; the record is one before.
    assert later == gone.round + 65


def test_the_founder_is_the_first_member() -> None:
    membership = founding(EVERYBODY[3])
    assert membership.peers == (EVERYBODY[3],)
    assert EVERYBODY[3] in membership
    assert EVERYBODY[4] not in membership
    assert len(membership) == 1
