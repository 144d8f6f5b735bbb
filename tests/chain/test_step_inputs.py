"""Inputs of a record's step: all updates, or one for each aggregate that counts."""

from __future__ import annotations

from chain.committee_chain import AggregatedChain
from distro_node.protocol.chain.step_inputs import StepBody, needed_for
from distro_node.protocol.codec.update import update_layout
from distro_node.protocol.committee.aggregate import (
    Aggregate,
    Momentum,
    encode_aggregate,
    section_header,
)
from distro_node.protocol.committee.sections import sections
from simulation.chain import Chain


def test_without_committees_all_updates_are_needed() -> None:
    chain = Chain(3)
    record = chain.grow().record
    needed = needed_for(chain.ledger, record)
    assert [each.entry for each in needed] == list(record.updates)
    assert [each.update_weight for each in needed] == list(chain.ledger.update_weights(record))
    assert all(each.fits(b"anything that decodes") for each in needed)


def test_nobody_needs_a_sign_vote_to_take_the_step() -> None:
    chain = AggregatedChain()
    record = chain.grow().record
    assert len(record.updates) == 6
    assert needed_for(chain.ledger, record) == ()


def test_one_of_each_aggregate_is_needed() -> None:
    chain = AggregatedChain()
    chain.grow()
    record = chain.grow().record
    needed = needed_for(chain.ledger, record)
    assert [each.update_weight for each in needed] == [1, 1]
    assert {each.beginning for each in needed} == {section_header(0, 2), section_header(1, 2)}
    assert {each.entry.update for each in needed} == {*chain.committee_chain.aggregates(record)}
    for each in needed:
        section = 0 if each.beginning == section_header(0, 2) else 1
        committee = chain.committee_chain.committee(record.round, section)
        assert each.entry.peer in committee


def test_an_aggregate_that_does_not_count_is_not_needed() -> None:
    chain = AggregatedChain()
    chain.grow()
    liar = chain.committee_chain.committee(2, 1)[0]
    chain.lying = {liar}
    record = chain.grow().record
    found = [each.beginning for each in needed_for(chain.ledger, record)]
    assert found == [section_header(0, 2)]


def test_a_committee_aggregates_its_own_section_alone() -> None:
    """Otherwise two byzantine members in one committee could undo another's aggregate."""
    chain = AggregatedChain()
    optimizer = chain.manifest.optimizer
    layout = update_layout(chain.manifest.parameters, optimizer.chunk, optimizer.top_k)
    cut = sections(layout, 2)
    bodies = [
        encode_aggregate(own, Aggregate(number, 2, (), Momentum(own).take_strongest(0)))
        for number, own in enumerate(cut)
    ]
    entry = chain.update(chain.membership.peers[0])
    for place, fits in (((0, 2), True), ((1, 2), False), ((0, 3), False)):
        assert StepBody(entry, 1, section_header(*place)).fits(bodies[0]) is fits
    assert StepBody(entry, 1, section_header(1, 2)).fits(bodies[1])
