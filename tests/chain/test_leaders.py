"""Leader schedule, where members have different numbers of votes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.leaders import LeaderHistory, LeaderRecord, Leaders
from distro_node.protocol.wire.membership import Membership, Votes
from distro_node.protocol.wire.messages import Record, RecordId
from simulation.still_chain import StillChain
from simulation.swarm import identity

SWARM = bytes(32)
PEERS = sorted(identity(index).peer for index in range(12))
# Members for so long that none of them has just joined.
MEMBERS = Membership(since=dict.fromkeys(PEERS, -100))
CHAIN: Any = StillChain(SWARM, MEMBERS)
VOTES = Votes({PEERS[0]: 600, PEERS[1]: 300, PEERS[2]: 100})


def one_each(round_: int, members: Membership = MEMBERS) -> list[PeerId]:
    """The leaders of a round's slots where each member has one vote, as many as members."""
    leaders = Leaders(SWARM, round_, members, members.one_each)
    return [leaders[slot] for slot in range(1, 1 + len(members))]


def without(*gone: PeerId) -> Membership:
    return Membership(since={peer: -100 for peer in PEERS if peer not in gone})


def test_with_one_vote_each_all_lead_in_an_order_that_is_drawn_for_each_round() -> None:
    leaders = Leaders(SWARM, 7, MEMBERS, MEMBERS.one_each)
    order = one_each(7)
    assert sorted(order) == PEERS
    assert [leaders[slot] for slot in range(1, 25)] == [*order, *order]
    led = Counter(one_each(round_)[0] for round_ in range(1200))
    assert all(60 < led[peer] < 140 for peer in PEERS)


def test_who_leaves_gives_up_its_own_slots_and_moves_nobody() -> None:
    """On a circle or a line, liars with a third of the votes led up to 95 % of the rounds: in each round
    some of them were away, so that one of them was next."""
    votes = Votes({peer: 100 + 10 * number for number, peer in enumerate(PEERS)})
    for round_ in range(200):
        order = one_each(round_)
        leader = Leaders(SWARM, round_, MEMBERS, votes)[1]
        for peer in PEERS:
            assert one_each(round_, without(peer)) == [each for each in order if each != peer]
            rest = Votes({each: n for each, n in votes.by_peer.items() if each != peer})
            now = Leaders(SWARM, round_, without(peer), rest)[1]
            assert now == leader or peer == leader


def test_accomplices_that_come_and_go_lead_no_more_than_their_share() -> None:
    """Four of twelve; before each round they choose which of them are members."""
    liars, led = PEERS[:4], 0
    choices = [liars[:n] + liars[n + 1 :] for n in range(4)] + [liars[:n] for n in range(5)]
    for round_ in range(300):
        led += any(
            one_each(round_, without(*(peer for peer in liars if peer not in here)))[0] in liars
            for here in choices
        )
    assert 70 < led < 130


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
    assert [leaders[slot] for slot in range(2, 25, 2)] == one_each(3)


def test_a_vote_more_or_less_redraws_nothing() -> None:
    """Otherwise a leader would try which audits to record until it leads again."""
    changed = 0
    for more in range(1, 51):
        varied = Votes({**VOTES.by_peer, PEERS[1]: 300 + more % 10})
        changed += sum(
            Leaders(SWARM, round_, MEMBERS, varied)[1] != Leaders(SWARM, round_, MEMBERS, VOTES)[1]
            for round_ in range(20)
        )
    assert changed < 50


def test_no_identity_stands_where_many_points_fall() -> None:
    """Each member draws another number in each round."""
    votes = Votes(dict.fromkeys(PEERS, 10))
    led = Counter(Leaders(SWARM, round_, MEMBERS, votes)[1] for round_ in range(600))
    assert set(led) == set(PEERS)
    assert max(led.values()) < 100


def leads(*slots: int) -> LeaderHistory:
    """Return the state after records from round 0 on that were first proposed in these slots."""
    found = LeaderHistory(CHAIN)
    for round_, slot in enumerate(slots):
        record = Record(round_, RecordId(bytes(32)), 0, (), (), (), None, slot=slot)
        found.follow(record)
    return found


def turns(peer: PeerId, count: int) -> list[int]:
    """The first rounds from round 1 on whose first slot a member leads, in which none is passed over."""
    return [round_ for round_ in range(1, 1000) if one_each(round_)[0] == peer][:count]


def wasted(rounds: list[int], length: int) -> list[int]:
    """The slots of records of which these rounds' first slots were skipped."""
    return [2 if round_ in rounds else 1 for round_ in range(length)]


def test_who_had_two_slots_skipped_in_a_row_is_passed_over_for_a_while() -> None:
    slow = PEERS[0]
    rounds = turns(slow, 2)
    back = rounds[1] + 1 + 12
    assert leads(*wasted(rounds, rounds[1])).passed_over(rounds[1]) == frozenset()
    found = leads(*wasted(rounds, back))
    assert all(found.passed_over(round_) == {slow} for round_ in range(rounds[1] + 1, back))
    leaders, order = found.leaders(back - 1), one_each(back - 1)
    others = [peer for peer in order if peer != slow]
    # Once each of the others has led, the member that is passed over does as well.
    assert [leaders[slot] for slot in range(1, 24)] == [*others, order[11], *order[:11]]
    assert found.passed_over(back) == frozenset()


def test_each_further_skipped_slot_doubles_that_up_to_a_bound_and_a_record_ends_it() -> None:
    lead, waits = LeaderRecord(0), []
    for _ in range(8):
        lead = lead.skipped_again(0, 12)
        waits.append(max(0, lead.back - 1))
    assert waits == [0, 12, 24, 48, 96, 96, 96, 96]
    # In the second of these rounds its slot yields a record, which clears the earlier skipped slot.
    first, _, third = turns(PEERS[0], 3)
    assert leads(*wasted([first, third], third + 1)).passed_over(third + 1) == frozenset()


def test_who_has_just_joined_is_passed_over_and_so_are_a_third_at_most() -> None:
    """An identity that leads the next round is found in as many tries as there are members."""
    since = dict.fromkeys(PEERS, 0) | {PEERS[4]: 30, PEERS[7]: 39}
    chain: Any = StillChain(SWARM, Membership(since=since))
    found = LeaderHistory(chain, [{}] * 60)
    assert found.passed_over(11) == {PEERS[4], PEERS[7], PEERS[0]}
    assert found.passed_over(41) == {PEERS[4], PEERS[7]}
    assert found.passed_over(42) == {PEERS[7]}
    assert found.passed_over(51) == frozenset()
    # Before them come those whose slots were skipped.
    skipped = {peer: LeaderRecord(skipped=2, back=100) for peer in PEERS[:2]}
    found = LeaderHistory(chain, [skipped] * 60)
    assert found.passed_over(41) == {*PEERS[:2], PEERS[7]}


def test_no_more_than_a_third_are_passed_over() -> None:
    """The bound holds however many slots fail: in bad conditions, or through byzantine members."""
    found = leads(1, *[10] * 40)
    assert len(found.passed_over(41)) == 3
    assert all(len(found.passed_over(round_)) <= 3 for round_ in range(41))


def test_where_votes_differ_who_is_passed_over_draws_no_slot() -> None:
    leaders = Leaders(SWARM, 3, MEMBERS, VOTES, {PEERS[0]})
    assert {leaders[slot] for slot in range(1, 23, 2)} <= {PEERS[1], PEERS[2]}
    assert PEERS[0] not in [leaders[slot] for slot in range(2, 23, 2)]
    # Unless no other member has votes.
    assert Leaders(SWARM, 3, MEMBERS, Votes({PEERS[0]: 5}), {PEERS[0]})[1] == PEERS[0]
    assert PEERS[0] in [leaders[slot] for slot in range(25, 90, 2)]


def test_a_shorter_chain_has_what_it_had() -> None:
    found = leads(1, *[3] * 20)
    again = found.before(12, CHAIN)
    assert [again.passed_over(r) for r in range(13)] == [found.passed_over(r) for r in range(13)]
