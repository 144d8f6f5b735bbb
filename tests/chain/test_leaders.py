"""Leader schedule, where members have different numbers of votes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from distro_node.protocol.chain.leaders import LeaderHistory, LeaderRecord, Leaders
from distro_node.protocol.wire.membership import Membership, Votes
from distro_node.protocol.wire.messages import Record, RecordId
from simulation.still_chain import StillChain
from simulation.swarm import identity

SWARM = bytes(32)
PEERS = sorted(identity(index).peer for index in range(12))
MEMBERS = Membership(since=dict.fromkeys(PEERS, 0))
CHAIN: Any = StillChain(SWARM, MEMBERS)
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
    """The order on the line differs in each round: rounds with the same leader have other leaders with
    as many votes, too."""
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


def test_who_had_two_slots_skipped_in_a_row_is_passed_over_for_a_while() -> None:
    """Twelve members rotate: the leader of the first slot of round 1 leads that of round 13 as well."""
    slow = MEMBERS.circle(SWARM, 1)[0]
    wasted = [2 if round_ in (1, 13) else 1 for round_ in range(14)]
    assert leads(*wasted[:13]).passed_over(13) == frozenset()
    found = leads(*wasted, *[1] * 12)
    assert all(found.passed_over(round_) == {slow} for round_ in range(14, 26))
    leaders = found.leaders(25)
    assert leaders[1] == MEMBERS.circle(SWARM, 26)[0]
    # Once each of the others has led, the member that is passed over does as well.
    assert [leaders[slot] for slot in range(12, 24)] == [
        MEMBERS.circle(SWARM, 25)[turn % 12] for turn in range(11, 23)
    ]
    assert found.passed_over(26) == frozenset()


def test_each_further_skipped_slot_doubles_that_up_to_a_bound_and_a_record_ends_it() -> None:
    lead, waits = LeaderRecord(0), []
    for _ in range(8):
        lead = lead.skipped_again(0, 12)
        waits.append(max(0, lead.back - 1))
    assert waits == [0, 12, 24, 48, 96, 96, 96, 96]
    slow = MEMBERS.circle(SWARM, 1)[0]
    # In round 13 its slot yields a record, which clears the earlier skipped slots.
    assert (
        leads(*[2 if round_ in (1, 25) else 1 for round_ in range(27)]).passed_over(26)
        == frozenset()
    ), slow


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
