"""Committees on a chain: when members are due, which aggregates count, and the state of a shorter
chain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from chain.committee_chain import LIE, AggregatedChain, aggregate
from distro_node.protocol.chain.committees import CommitteeChain
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.committee.aggregate import ABSTENTION
from distro_node.protocol.committee.draw import AggregatorStanding
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.manifest import (
    Manifest,
    decode_manifest,
)
from distro_node.protocol.wire.work_specs import CommitteesSpec, FeatureSettings
from simulation.chain import Chain


@pytest.fixture
def chain() -> AggregatedChain:
    """At round 1, with members 0 to 5."""
    return AggregatedChain()


def test_members_train_in_odd_rounds_and_aggregate_in_even_ones(
    chain: AggregatedChain,
) -> None:
    for _ in range(3):
        assert chain.ledger.assignments.due(chain.round) == {*chain.membership.peers}
        chain.grow()
        assert not chain.ledger.assignments.open_work(chain.membership.peers[0])
        assert chain.ledger.assignments.share(chain.round, chain.membership.peers[0]) is None
        assert chain.ledger.assignments.due(chain.round) == {*chain.membership.peers}
        chain.grow()
    assert chain.round == 7


def test_each_sample_is_assigned_once_though_a_step_takes_two_rounds(
    chain: AggregatedChain,
) -> None:
    plain, streams = Chain(6), chain.ledger.assignments.order.streams
    for step in range(1, 6):
        assignments, now = chain.ledger.assignments, chain.round
        samples = {s for p in chain.membership.peers for s in assignments.share(now, p) or ()}
        assert assignments.cursors(now).rows(streams).tolist() == [step - 1] * streams
        assert samples == {
            s for p in plain.membership.peers for s in plain.ledger.assignments.share(step, p) or ()
        }
        chain.grow()
        chain.grow()
        plain.grow()


def test_what_is_left_untrained_is_assigned_again_in_the_next_step(chain: AggregatedChain) -> None:
    absent = chain.membership.peers[0]
    share = set(chain.ledger.assignments.share(1, absent) or ())
    assert share
    chain.grow(updates=[chain.update(peer) for peer in chain.membership.peers[1:]])
    chain.grow()

    again = {s for p in chain.membership.peers for s in chain.ledger.assignments.share(3, p) or ()}

    assert share <= again


def test_an_aggregate_counts_once_however_many_announce_it(chain: AggregatedChain) -> None:
    chain.grow()
    committees = chain.committee_chain.epoch(2).committees
    record = chain.record(updates=chain.aggregates())

    assert [len(committee) for committee in committees] == [3, 3]
    assert sum(chain.ledger.update_weights(record)) == len(committees)
    assert chain.committee_chain.aggregates(record) == tuple(
        aggregate(committee, 2) for committee in committees
    )
    before = chain.ledger.update_bytes(0, 2)
    chain.grow()
    assert chain.ledger.update_bytes(0, 3) - before == 2 * 700


def test_sign_votes_are_not_replayed(chain: AggregatedChain) -> None:
    chain.grow()
    assert chain.ledger.update_bytes(1, 2) == 0


def test_two_sign_votes_cannot_be_the_same(chain: AggregatedChain) -> None:
    updates = [chain.update(peer, update=LIE) for peer in chain.membership.peers]
    with pytest.raises(ProtocolError, match="one update under two members"):
        chain.grow(updates=updates)


def test_nobody_aggregates_who_was_not_drawn(chain: AggregatedChain) -> None:
    chain.grow()
    chain.grow(admitted=[chain.admission(6)])
    chain.grow()
    newcomer = chain.update(6, update=LIE)
    with pytest.raises(ProtocolError, match="without an assignment"):
        chain.grow(updates=[*chain.aggregates(), newcomer])


def test_a_liar_voids_its_committees_aggregate_and_is_not_drawn_for_two_epochs(
    chain: AggregatedChain,
) -> None:
    liar = chain.membership.peers[2]
    chain.grow()
    chain.lying = {liar}
    silent = chain.committee_chain.epoch(2).section_of(liar)
    record = chain.record(updates=chain.aggregates())

    found = chain.committee_chain.aggregates(record)

    assert [number for number, each in enumerate(found) if each is None] == [silent]
    assert sum(chain.ledger.update_weights(record)) == 1
    chain.grow()
    chain.lying = set()
    chain.grow_until(5)
    # The epoch of the rounds 1 to 4 is over.
    assert chain.committee_chain.epoch(5).standings == {liar: AggregatorStanding().penalised(0)}
    drawn = []
    for epoch in range(1, 4):
        chain.grow_until(1 + 4 * epoch)
        drawn.append(chain.committee_chain.epoch(chain.round).section_of(liar) is not None)
    assert drawn == [False, False, True]
    chain.grow_until(1 + 4 * 4)
    # It has served an epoch without a penalty.
    assert liar not in {
        p for p, s in chain.committee_chain.epoch(chain.round).standings.items() if s.penalties
    }


def test_who_comes_later_waits_and_who_was_there_when_training_began_does_not() -> None:
    chain = AggregatedChain(6, epoch=1)
    chain.grow(admitted=[chain.admission(6)])
    (newcomer,) = set(chain.membership.peers) - set(chain.ledger.membership(1).peers)
    first = None
    while first is None and chain.round < 40:
        chain.grow()
        if not chain.manifest.aggregates_in(chain.round):
            section = chain.committee_chain.epoch(chain.round).section_of(newcomer)
            first = chain.round if section is not None else None
    # Admitted in the epoch of the rounds 1 and 2; the sixth begins with round 11.
    assert first == 11
    # From then on it is a member like others, and its entry is dropped: identities cost nothing.
    assert newcomer not in chain.committee_chain.epoch(first).standings
    assert newcomer in chain.committee_chain.epoch(first - 2).standings


def test_others_are_drawn_for_the_next_epoch(chain: AggregatedChain) -> None:
    first = chain.committee_chain.epoch(1).committees
    chain.grow_until(5)
    assert chain.committee_chain.epoch(4).committees == first
    assert chain.committee_chain.epoch(5).committees != first


def test_the_last_of_a_committee_aggregates_alone() -> None:
    chain = AggregatedChain(3)
    chain.grow(departed=[chain.leave(peer) for peer in chain.membership.peers[:2]])
    (left,) = chain.membership.peers
    record = chain.record(updates=chain.aggregates())
    assert [entry.peer for entry in record.updates] == [left]
    assert sum(chain.ledger.update_weights(record)) == 1


@pytest.mark.parametrize("length", range(19))
def test_a_shorter_chain_knows_what_it_knew_then(length: int) -> None:
    chain = AggregatedChain(7)
    again = Ledger(chain.manifest)
    liar = chain.membership.peers[1]
    while chain.round < 18:
        chain.lying = {liar} if chain.round in (4, 10) else set()
        admitted = [chain.admission(20)] if chain.round == 3 else []
        chain.grow(admitted=admitted)
    for round_ in range(length):
        again.append(chain.ledger[round_])

    short = chain.ledger.truncated(length)

    for round_ in range(length, 18):
        assert short.assignments.due(len(short)) == again.assignments.due(len(again))
        assert len(short.assignments) == len(again.assignments) == round_
        for peer in short.membership(round_).peers:
            assert short.assignments.share(round_, peer) == again.assignments.share(round_, peer)
        for ledger in (short, again):
            ledger.append(chain.ledger[round_])
    committee_chain = short.find(CommitteeChain), again.find(CommitteeChain), chain.committee_chain
    committees = {each.epoch(17).committees for each in committee_chain if each is not None}
    assert len(committees) == 1
    assert short.update_bytes(0, 18) == chain.ledger.update_bytes(0, 18)


def test_a_run_ends_after_its_last_step() -> None:
    chain = AggregatedChain(4, total=4)
    while not chain.ledger.finished:
        chain.grow()
    assert chain.round == 4 + 1 + 8
    assert [len(chain.ledger[r].record.updates) for r in range(1, 6)] == [4, 4, 4, 4, 0]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"total": 5}, "total_rounds \\(5\\) is odd"),
        ({"overlap": True}, "rounds.overlap"),
        ({"outlier_filter": True}, "optimizer.outlier_filter"),
    ],
)
def test_what_does_not_go_with_committees(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        AggregatedChain(1, **changes)


def test_a_committee_holds_what_counted_since_it_began() -> None:
    """A step without an aggregate restarts the committee, and so does an epoch; a shorter chain has the
    same state."""
    long = AggregatedChain(epoch=4)
    lengths: list[list[int]] = []
    for step in range(6):
        long.grow()
        assert [len(long.committee_chain.agreed(section)) for section in (0, 1)] == (
            lengths[-1] if lengths and step % 4 else [0, 0]
        )
        # In the third step one of the first committee announces another aggregate.
        long.lying = {long.committee_chain.committee(long.round, 0)[0]} if step == 2 else set()
        long.grow()
        lengths.append([len(long.committee_chain.agreed(section)) for section in (0, 1)])
    # After the fourth an epoch is over. The members that may be drawn make one committee then.
    assert lengths == [[1, 1], [2, 2], [0, 3], [0, 0], [1, 0], [2, 0]]
    assert (
        long.committee_chain.agreed(0)[-1]
        == long.committee_chain.aggregates(long.ledger[12].record)[0]
    )
    shorter = long.ledger.truncated(7).find(CommitteeChain)
    assert shorter is not None
    assert [len(shorter.agreed(section)) for section in (0, 1)] == [0, 3]


def test_who_abstains_is_not_waited_for_and_contradicts_nobody() -> None:
    chain = AggregatedChain(epoch=5)
    chain.grow()
    quiet, *others = chain.committee_chain.committee(2, 0)
    said = [
        entry if entry.peer != quiet else chain.update(quiet, update=ABSTENTION, size=1)
        for entry in chain.aggregates()
    ]
    record = chain.grow(updates=said).record
    assert None not in chain.committee_chain.aggregates(record)
    assert {entry.peer for entry in record.updates if entry.update == ABSTENTION} == {quiet}
    assert quiet not in chain.committee_chain.counted(record)
    # All but one, or all: one alone is too few, and an abstention is no aggregate.
    for silent in (others, [quiet, *others]):
        chain.grow()
        committee = chain.committee_chain.committee(chain.round, 0)
        assert {quiet, *others} == {*committee}
        said = [
            entry if entry.peer not in silent else chain.update(entry.peer, update=ABSTENTION)
            for entry in chain.aggregates()
        ]
        aggregates = chain.committee_chain.aggregates(chain.grow(updates=said).record)
        assert aggregates[0] is None
        assert aggregates[1] is not None


def test_a_manifest_with_committees_comes_back(chain: AggregatedChain) -> None:
    manifest: Manifest = chain.manifest
    assert decode_manifest(manifest.encode(), manifest.swarm) == manifest


def test_a_sign_vote_has_to_fit_into_one_blob() -> None:
    """While there is one committee, a sign vote has one part."""
    committees = CommitteesSpec(rotation_steps=8)
    rest = FeatureSettings(
        audited=False,
        private=False,
        overlap=False,
        outlier_filter=False,
        preconditioner="orthogonal",
        update_weight="equal",
        rounds=2,
        elements=1_000_000_000,
    )
    committees.check(rest)
    with pytest.raises(
        ValueError, match=r"rotation_steps \(8\) is too small .* set it to 10 or more"
    ):
        committees.check(replace(rest, elements=1_200_000_000))
