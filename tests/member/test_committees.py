"""A member of a swarm with committees: what it is asked for, votes for, waits for and needs."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from chain.committee_chain import AggregatedChain
from distro_node.crypto.envelope import Envelope
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.committees import CommitteeChain
from distro_node.protocol.member.aggregation import AggregationPart, MakeAggregate
from distro_node.protocol.member.beacon_secrets import BeaconSecrets
from distro_node.protocol.member.effects import (
    Apply,
    Effect,
    FetchUpdate,
    Publish,
    Train,
)
from distro_node.protocol.member.inputs import (
    Applied,
    EntryReceived,
    Loaded,
    MessageReceived,
    Tick,
    Trained,
    UpdateHeld,
)
from distro_node.protocol.member.local_updates import Training
from distro_node.protocol.member.member import Member
from distro_node.protocol.member.member_part import TipWork
from distro_node.protocol.wire.messages import NO_BLOCK, Proposal, RecordId
from simulation.chain import FINGERPRINT
from simulation.keys import identity

E = TypeVar("E")


def of(kind: type[E], effects: Iterable[Effect]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


class Seat:
    """Member of six, in two committees, at the tip of a chain."""

    def __init__(self, grown: int) -> None:
        self.chain = AggregatedChain()
        for _ in range(grown):
            self.chain.grow()
        # The others lead the first five slots.
        others = set(self.chain.leaders[:-1])
        (self.me,) = (peer for peer in self.chain.membership.peers if peer not in others)
        self.member: Member = self.chain.member(self.me, load=False)
        self.first = self.member.handle(Loaded(self.chain.round - 1, FINGERPRINT, None), 0.0)

    def decides(self) -> list[Effect]:
        return self.member.handle(EntryReceived(self.chain.grow()), 0.0)


def test_it_trains_in_one_round_and_aggregates_in_the_next() -> None:
    seat = Seat(0)
    (train,) = of(Train, seat.first)
    assert (train.round, of(MakeAggregate, seat.first)) == (1, [])
    # No member holds a sign vote that the record names, and none needs one.
    effects = seat.decides()
    assert of(FetchUpdate, effects) == []
    (apply,) = of(Apply, effects)
    assert apply.needed == ()
    assert not apply.own_counted
    effects = seat.member.handle(Applied(1, FINGERPRINT, None), 0.0)
    (aggregate,) = of(MakeAggregate, effects)
    assert of(Train, effects) == []
    place = seat.chain.committee_chain.place(2, seat.me)
    assert (aggregate.round, (aggregate.section, aggregate.sections)) == (2, place)
    assert aggregate.sign_votes == seat.chain.ledger[1].record
    assert aggregate.agreed == ()


def test_sign_votes_are_waited_for_half_as_long_as_updates() -> None:
    """An aggregator that waits until the round is over announces its aggregate too late."""
    seat = Seat(1)
    (aggregate,) = of(MakeAggregate, seat.first)
    limits = seat.chain.manifest.rounds
    # No round was observed yet, so the wait is at its maximum.
    assert aggregate.patience == pytest.approx(limits.collect_max_seconds / 2)


def test_it_needs_one_of_each_aggregate_to_take_the_step() -> None:
    seat = Seat(1)
    effects = seat.decides()
    asked = {effect.update for effect in of(FetchUpdate, effects)}
    assert asked == {*seat.chain.committee_chain.aggregates(seat.chain.ledger[2].record)}
    for update in asked:
        effects = seat.member.handle(UpdateHeld(update), 0.0)
    (apply,) = of(Apply, effects)
    assert [each.update_weight for each in apply.needed] == [1, 1]


@pytest.mark.parametrize(
    ("slot", "late", "votes"), [(1, False, 0), (4, False, 0), (5, False, 1), (1, True, 1)]
)
def test_it_votes_for_no_record_that_leaves_out_an_aggregate_received_in_time(
    slot: int, late: bool, votes: int
) -> None:
    """Otherwise two byzantine aggregators of a committee, one of them leading, would decide for all;
    and a byzantine leader could reset every committee. A swarm that cannot go on otherwise goes on
    anyway."""
    seat = Seat(1)
    chain, collect = seat.chain, seat.chain.manifest.rounds.collect_max_seconds
    # Its aggregate differs from its committee's.
    liar = next(peer for peer in chain.leaders if peer != seat.me)
    chain.lying = {liar}
    entries = chain.aggregates()
    hidden = next(entry for entry in entries if entry.peer == liar)
    for entry in entries:
        said = chain.announcement(entry.peer, update=entry.update, size=entry.size)
        seat.member.handle(MessageReceived(chain.envelope(entry.peer, "announcement", said)), 1.0)
        if not (late and entry is hidden):
            seat.member.handle(UpdateHeld(entry.update), 1.0)
    if late:
        seat.member.handle(UpdateHeld(hidden.update), 0.9 * collect)
    now = 1.0 + collect
    for number in range(1, slot):
        for peer in chain.leaders[:-1]:
            skip = chain.ballot(NO_BLOCK, slot=number)
            seat.member.handle(MessageReceived(chain.envelope(peer, "skip", skip)), now)
    record = chain.record(updates=[e for e in entries if e is not hidden], slot=slot)
    envelope = chain.envelope(chain.leaders[slot - 1], "proposal", Proposal(slot, record))
    effects = [
        *seat.member.handle(MessageReceived(envelope), now),
        *seat.member.handle(Tick(), now),
    ]
    said = [effect.envelope.kind for effect in of(Publish, effects)]
    assert said.count("vote") == votes


def test_it_votes_for_sign_votes_that_it_does_not_hold_but_for_no_aggregate() -> None:
    """Otherwise a member that sends a sign vote to some peers only would keep the others from voting."""
    for grown, votes in ((0, 1), (1, 0)):
        seat = Seat(grown)
        chain, leader = seat.chain, seat.chain.leaders[0]
        assert seat.me != leader
        updates = (
            seat.chain.aggregates() if grown else [chain.update(p) for p in chain.leaders[:-1]]
        )
        record = chain.record(updates=updates)
        envelope = chain.envelope(leader, "proposal", Proposal(1, record))
        effects = seat.member.handle(MessageReceived(envelope), 100.0)
        said = [effect.envelope.kind for effect in of(Publish, effects)]
        assert said.count("vote") == votes


def _signs_nothing(kind: str, body: bytes) -> Envelope:
    raise AssertionError("it has nothing to sign")


class Slow:
    """Ledger in which a member needs five rounds for its assignment of the first, and aggregates in
    every even one."""

    def __init__(self, me: PeerId) -> None:
        self.tip, self.head = 1, RecordId(bytes(32))
        self.manifest = SimpleNamespace(
            aggregates_in=lambda round_: round_ % 2 == 0,
            schedule=SimpleNamespace(trains=lambda round_: True),
        )
        self.assignments = SimpleNamespace(
            open_work=lambda peer: [(5, 1, lambda: (7,))],
            due=lambda round_: {me},
            update_weights=lambda record: {},
        )

    def find(self, kind: type) -> Any:
        assert kind is CommitteeChain
        return SimpleNamespace(place=lambda round_, peer: (0, 1), agreed=lambda section: ())

    def __len__(self) -> int:
        return self.tip

    def __getitem__(self, round_: int) -> Any:
        return SimpleNamespace(record=SimpleNamespace(updates=()))


def test_who_needs_several_rounds_aggregates_meanwhile_and_loses_nothing_by_it() -> None:
    me = identity(0).peer
    training, ledger = Training(me, overlap=False), Slow(me)
    aggregation = AggregationPart(me, BeaconSecrets(me, _signs_nothing), training)
    swarm: Any = ledger
    (work,) = training.next_work(swarm, announced=False)
    assert (work.round, work.assigned_in) == (5, 1)
    made = Trained(5, 1, content_id(b"an update"), 100, 10, 2.0)
    for ledger.tip in (2, 3, 4, 5):
        at = TipWork(ledger.tip, announced=False, collect_seconds=2.0)
        aggregates = aggregation.work(at, swarm)
        assert len(aggregates or []) == (ledger.tip % 2 == 0)
        assert not aggregation.work(at, swarm)
        if ledger.tip == 4:
            training.keep(made, ledger.tip)
        assert training.due(swarm) == (made if ledger.tip == 5 else None)
        assert ledger.tip == 5 or training.next_work(swarm, announced=ledger.tip == 4) == []
