"""Rules of shares: the gain of a claim, the cost of lateness, and the fate of a lent stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from distro_node.crypto.hashing import ContentId
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.shares import ShareHistory
from distro_node.protocol.member.capacity import Capacity
from distro_node.protocol.member.effects import Effect, Publish, Train
from distro_node.protocol.member.inputs import (
    Applied,
    EntryReceived,
    Loaded,
    MessageReceived,
    Trained,
    UpdateHeld,
)
from distro_node.protocol.member.member import Member
from distro_node.protocol.sampling import assignment, member_weights
from distro_node.protocol.sampling.assignment import Assignment, AssignmentRules
from distro_node.protocol.sampling.member_weights import MemberWeight
from distro_node.protocol.sampling.sampler import StreamOrder
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.membership import Membership
from distro_node.protocol.wire.messages import Record, RecordId, UpdateEntry
from simulation.chain import FINGERPRINT, Chain
from simulation.swarm import identity

PEERS = [PeerId(bytes([number]) * 32) for number in range(8)]
HUGE = 1 << 40
NOTHING = Train(0, RecordId(bytes(32)), (), 0)


def _record(stated: dict[PeerId, int], round_: int = 5) -> Record:
    """Return a record in which these updates count, each with a capacity."""
    updates = tuple(
        UpdateEntry(peer, ContentId(bytes([n]) * 32), 1, 1, 0.0, bytes(64), capacity)
        for n, (peer, capacity) in enumerate(sorted(stated.items()))
    )
    return Record(round_, RecordId(bytes(32)), 0, updates, (), (), None)


def _after(
    values: Sequence[int], stated: dict[PeerId, int], members: Sequence[PeerId] = ()
) -> list[int]:
    """Return the weights of members that had these, after a round in which all updates were due."""
    before = {peer: MemberWeight(value) for peer, value in zip(PEERS, values, strict=False)}
    after = member_weights.next_weights(
        before, set(before), _record(stated), members or list(before), 64
    )
    return [after[peer].value for peer in members or before]


def test_a_claim_grows_step_by_step() -> None:
    assert _after([100, 100, 100], dict.fromkeys(PEERS[:3], HUGE)) == [150] * 3


def test_late_is_half_at_once() -> None:
    assert _after([100, 100, 100], dict.fromkeys(PEERS[:2], 100)) == [100, 100, 50]


def test_who_states_less_has_less_at_once() -> None:
    assert _after([100, 100], {PEERS[0]: 100, PEERS[1]: 3}) == [100, 3]


def test_nobody_is_late_with_what_was_not_due() -> None:
    everybody = {peer: MemberWeight(100) for peer in PEERS[:3]}
    record = _record(dict.fromkeys(PEERS[:2], 100))
    after = member_weights.next_weights(everybody, set(PEERS[:2]), record, PEERS[:3], 64)
    assert after[PEERS[2]].value == 100


def test_a_newcomer_begins_modestly() -> None:
    stated = dict.fromkeys(PEERS[:3], 100)
    assert _after([100, 100, 100], stated, PEERS[:4]) == [100, 100, 100, 25]


def test_some_weight_is_left() -> None:
    """However often it is late: otherwise a member that was away could never show that it is back."""
    weight = MemberWeight(6400)
    for _ in range(30):
        weight = weight.late(100)
    kept = _after([4096 * 64, 4096 * 64, 300], dict.fromkeys(PEERS[:2], 4096 * 64))[2]
    assert weight.value == 100
    assert kept == 192


def test_no_claim_grows_for_ever() -> None:
    """Two of seven grow for a hundred rounds, each within the bound that the other raises: a few late
    updates still bring them back."""
    values = [100] * 7
    for _ in range(100):
        values = _after(values, dict.fromkeys(PEERS[:5], 100) | dict.fromkeys(PEERS[5:7], HUGE))
    assert values == [100] * 5 + [1400] * 2


def test_who_came_late_grows_carefully() -> None:
    """So an excessive claim costs one late update in nine, not one in three."""
    values = [(weight := MemberWeight(1600, HUGE).late(1)).value]
    for _ in range(10):
        weight = weight.counted(HUGE, HUGE)
        values.append(weight.value)
    assert values[:3] == [800, 880, 968]
    # For eight rounds, in which it comes to the weight that was too much; then it grows as before.
    assert 1600 < values[8] < 1760
    assert values[10] == values[8] * 9 // 4


def test_after_a_row_of_late_updates_half_of_the_weight_before_is_back_at_once() -> None:
    """A member that was away for a while is back soon; but only up to what it states."""
    weight = MemberWeight(1600, 1600).late(1).late(1).late(1)
    assert weight.value == 200
    assert weight.counted(1600, HUGE).value == 800
    assert weight.counted(300, HUGE).value == 300
    assert weight.counted(1600, 500).value == 500


def test_one_that_is_always_late_again_gains_nothing_by_being_on_time_in_between() -> None:
    weight = MemberWeight(1600, HUGE)
    for _ in range(4):
        weight = weight.late(1).late(1).counted(HUGE, HUGE)
    assert weight.value == 100


def test_rounds_in_which_nothing_was_due_count_as_growth() -> None:
    """A member with less than one stream is due in few rounds."""
    weight = MemberWeight(100, 100)
    assert weight.counted(HUGE, HUGE).value == 150
    assert weight.idle().idle().counted(HUGE, HUGE).value == 337
    for _ in range(1000):
        weight = weight.idle()
    assert weight.counted(HUGE, HUGE).value < 100 * 1.5**8


def test_a_minority_does_not_set_the_scale() -> None:
    """It sets neither the scale of a new swarm, nor that of a newcomer's weight or the floor."""
    stated = {PEERS[0]: 100, PEERS[1]: 100, PEERS[2]: HUGE}
    first = _after([0, 0, 0], stated)
    then = _after([100, 100, HUGE], {PEERS[0]: 100, PEERS[1]: 100, PEERS[2]: HUGE}, PEERS[:4])
    assert first == [100, 100, 150]
    assert then[3] == 25


# Streams


def _settings(
    streams: int, max_share: float = 0.5, trains: Callable[[int], bool] = bool
) -> AssignmentRules:
    return AssignmentRules(StreamOrder(1, 100_000, streams, 1000, 10), max_share, trains)


def _assigned(rules: AssignmentRules, values: Sequence[int], round_: int = 1) -> Assignment:
    everybody = Membership(since=dict.fromkeys(PEERS[: len(values)], 0))
    given = {peer: MemberWeight(value) for peer, value in zip(PEERS, values, strict=False)}
    return assignment.assign(rules, everybody, given, (), None, round_)


def test_a_slow_one_of_three_has_less() -> None:
    """With a bound of one third for each, all three would have the same for ever."""
    runs = _assigned(_settings(30, 1 / 3), [100, 100, 50]).runs
    assert [sum(map(len, runs[peer])) for peer in PEERS[:3]] == [12, 12, 6]


def test_who_needs_longer_has_longer() -> None:
    """A fifth of a sequence a round: five rounds."""
    works = _assigned(_settings(40), [200, 200, 200, 2]).lent_streams
    assert [work.due - work.assigned_in > 2 for work in works] == [True]


def test_nobody_has_for_ever() -> None:
    (work,) = _assigned(_settings(40), [HUGE, HUGE, HUGE, 1]).lent_streams
    assert work.due == 64


# Chains


def _swarm_with_a_slow_one(**changes: Any) -> tuple[Chain, PeerId]:
    """Return a chain of four members, one of which has stated a hundredth of the others' capacity and
    has one of 16 streams; and that member."""
    chain = Chain(4, sequences=16, max_share=0.5, **changes)
    slow = chain.membership.peers[-1]
    while not chain.ledger.assignments.shares(chain.round).lent_streams:
        due = chain.ledger.assignments.due(chain.round)
        capacities = {peer: 10 if peer == slow else 1000 for peer in due}
        chain.grow(updates=[chain.update(p, capacity=c) for p, c in sorted(capacities.items())])
    return chain, slow


def _continues(chain: Chain, slow: PeerId, *, counted: bool = True) -> None:
    due = [peer for peer in chain.ledger.assignments.due(chain.round) if counted or peer != slow]
    chain.grow(updates=[chain.update(p, capacity=10 if p == slow else 1000) for p in sorted(due)])


def test_an_update_counts_where_it_is_due() -> None:
    chain, slow = _swarm_with_a_slow_one()
    everybody = [chain.update(peer, capacity=10) for peer in chain.membership.peers]
    assert slow not in chain.ledger.assignments.due(chain.round)
    with pytest.raises(ProtocolError):
        chain.grow(updates=everybody)


def test_what_is_not_due_is_not_taken_in() -> None:
    chain, slow = _swarm_with_a_slow_one()
    me = next(peer for peer in chain.membership.peers if peer != slow)
    said = chain.envelope(slow, "announcement", chain.announcement(slow))
    member = chain.member(me)
    with pytest.raises(ProtocolError) as refused:
        member.handle(MessageReceived(said), 0.0)
    assert refused.value.reason == "not_due"


def test_who_is_at_work_is_not_late() -> None:
    chain, slow = _swarm_with_a_slow_one()
    before = chain.ledger.assignments.shares(chain.round).weights[slow]
    (work,) = chain.ledger.assignments.shares(chain.round).lent_streams
    while chain.round < work.due:
        _continues(chain, slow)
    assert work.due > work.assigned_in + 1
    after = chain.ledger.assignments.shares(chain.round).weights[slow]
    assert (after.value, after.missed) == (before.value, before.missed)


def test_what_was_lent_and_not_trained_is_assigned_again() -> None:
    chain, slow = _swarm_with_a_slow_one()
    (work,) = chain.ledger.assignments.shares(chain.round).lent_streams
    row = int(chain.ledger.assignments.cursors(work.assigned_in).rows(16)[work.stream])
    while chain.round <= work.due:
        _continues(chain, slow, counted=False)
    assert int(chain.ledger.assignments.cursors(chain.round).rows(16)[work.stream]) == row


def test_what_is_lent_to_who_departs_is_assigned_again() -> None:
    chain, slow = _swarm_with_a_slow_one()
    (work,) = chain.ledger.assignments.shares(chain.round).lent_streams
    row = int(chain.ledger.assignments.cursors(work.assigned_in).rows(16)[work.stream])
    chain.grow(departed=[chain.leave(slow)])
    assert int(chain.ledger.assignments.cursors(chain.round).rows(16)[work.stream]) == row


def test_who_returns_computes_what_it_is_assigned_then() -> None:
    """It had a multi-round assignment when it fell out, and is back before that would be due."""
    chain, slow = _swarm_with_a_slow_one()
    member = chain.member(slow, load=False)
    first = _told(member.handle(Loaded(chain.round - 1, FINGERPRINT, None), 0.0))
    member.handle(_made(first), 0.0)
    effects = member.handle(EntryReceived(chain.grow(departed=[chain.silence(slow)])), 0.0)
    effects += _applies(member, chain)
    back = [chain.admission(number) for number in range(4) if identity(number).peer == slow]
    effects += member.handle(EntryReceived(chain.grow(admitted=back)), 0.0) + _applies(
        member, chain
    )
    while chain.round < first.round and not any(isinstance(each, Train) for each in effects):
        effects += member.handle(EntryReceived(chain.grow()), 0.0) + _applies(member, chain)
    second = _told(effects)
    announced = [each for each in effects if isinstance(each, Publish) and each.durable]
    late = member.handle(_made(first), 0.0)
    assert second.assigned_in > first.assigned_in
    assert not announced
    assert not late


def _told(effects: Iterable[Effect]) -> Train:
    return next((each for each in effects if isinstance(each, Train)), NOTHING)


def _made(told: Train) -> Trained:
    return Trained(told.round, told.assigned_in, ContentId(bytes(32)), 1000, 500, 2.5)


def _applies(member: Member, chain: Chain) -> list[Effect]:
    """Apply the last record, with all its updates."""
    updates = chain.ledger[chain.round - 1].record.updates
    effects = [e for entry in updates for e in member.handle(UpdateHeld(entry.update), 0.0)]
    return effects + member.handle(Applied(chain.round - 1, FINGERPRINT, None), 0.0)


def test_shares_take_little_memory() -> None:
    members = [Membership(since=dict.fromkeys(PEERS[:4], 0))] * 1001
    known = ShareHistory(_settings(16), members[0], False)
    records = [
        _record({} if round_ == 0 else dict.fromkeys(PEERS[:4], 100 + round_ % 7), round_)
        for round_ in range(1000)
    ]
    for record in records:
        known.follow(record, members[0])
    kept = len(vars(known)["_kept"])
    old = known.at(300, records.__getitem__, members.__getitem__)
    assert kept < 150
    assert old.round == 300
    assert old.weights[PEERS[0]].value == 105


# Capacity


def _capacity(*seconds: float, fixed: float = 0.0) -> Capacity:
    found = Capacity()
    for each in seconds:
        found.trained(10, each, fixed)
    return found


def test_one_slow_round_is_no_change() -> None:
    assert _capacity(10.0, 10.0, 90.0).measured(None) == 86_400


def test_what_is_sent_stays() -> None:
    found = _capacity(10.0)
    first = found.stated(None)
    found.trained(10, 10.5, 0.0)
    assert found.stated(None) == first == 86_400


def test_something_is_always_left_of_a_round() -> None:
    assert _capacity(10.0, fixed=50.0).measured(20.0) == 86_400 // 4


def test_a_capacity_has_a_bound() -> None:
    assert _capacity(1e-12).measured(None) == HUGE


def _shown(*timed: tuple[int, float]) -> Capacity:
    found = Capacity()
    for sequences, seconds in timed:
        found.trained(sequences, seconds, 0.0)
    return found


def test_what_any_update_takes_is_not_slowness() -> None:
    """Ten seconds for any update and one for each sequence: in 20 seconds that is ten."""
    ten = 86_400 // 2
    assert _shown((10, 20.0), (10, 20.0)).measured(20.0) == ten
    assert _shown((10, 20.0), (5, 15.0), (5, 15.0)).measured(20.0) == ten
    # One that had one sequence at a time states more than one in eleven seconds, and finds out.
    assert _shown((1, 11.0), (1, 11.0)).measured(20.0) > 2 * 86_400 // 20
    # A share that takes several rounds is as slow as it is.
    assert _shown((1, 40.0), (1, 40.0)).measured(20.0) == 86_400 // 40


def test_two_fast_updates_show_that_a_device_is_free_again() -> None:
    busy = [(10, 90.0)] * 7
    assert _shown(*busy, (10, 10.0)).measured(None) == 9600
    assert _shown(*busy, (10, 10.0), (10, 10.0)).measured(None) == 86_400
