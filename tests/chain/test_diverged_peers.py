"""Chains that diverge before our last final record: noticed, reported once, and never followed."""

from __future__ import annotations

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.protocol.chain.diverged_peers import DivergedPeers
from distro_node.protocol.chain.fork_search import ChainComparison, FetchBackoff
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.wire.messages import RecordId
from simulation.chain import Chain, answers
from simulation.keys import identity

FIRST, SECOND = (RecordId(content_id(word)) for word in (b"first", b"second"))
A, B, C = (identity(number).peer for number in range(3))


@pytest.fixture(scope="module")
def chains() -> tuple[Chain, Chain]:
    """Two chains that diverge in round 1, both with final records since."""
    ours = Chain(4)
    theirs = ours.fork()
    for _ in range(5):
        ours.grow()
        theirs.grow(updates=[])
    assert ours.ledger.final_round > 1
    return ours, theirs


def compare(ours: Ledger, theirs: Ledger, who: int) -> ChainComparison:
    """Compare with one peer."""
    ours.binding = True
    comparison = ChainComparison(ours, [identity(who).peer], FetchBackoff(), me=A, abandoned=False)
    answering = answers(theirs)
    while not comparison.done:
        for question in comparison.requests(0.0):
            assert comparison.on_answer(question.peer, answering(question), 0.0) is None
    return comparison


def test_a_member_on_such_a_chain_is_named_and_not_followed(chains: tuple[Chain, Chain]) -> None:
    ours, theirs = chains
    comparison = compare(ours.ledger, theirs.ledger, 1)
    assert comparison.reported == {B: theirs.ledger.parent(ours.ledger.final_round + 1)}
    assert comparison.better is None


def test_who_has_our_final_record_is_named_as_such(chains: tuple[Chain, Chain]) -> None:
    ours, _ = chains
    assert compare(ours.ledger, ours.ledger.truncated(len(ours.ledger)), 1).reported == {B: None}


def test_a_strangers_message_is_not_noted(chains: tuple[Chain, Chain]) -> None:
    ours, theirs = chains
    assert compare(ours.ledger, theirs.ledger, 40).reported == {}


def test_who_has_nothing_of_that_round_is_not_named(chains: tuple[Chain, Chain]) -> None:
    ours, theirs = chains
    assert compare(ours.ledger, theirs.ledger.truncated(1), 1).reported == {}


def test_a_chain_is_reported_once() -> None:
    apart = DivergedPeers()
    assert apart.take_reports({A: FIRST, B: FIRST}) == [A]
    assert apart.take_reports({C: FIRST}) == []
    # Later, by the record of another round: the peer is still on that chain.
    assert apart.take_reports({B: SECOND}) == []
    assert apart.peers == {A, B, C}


def test_another_chain_is_reported_as_well() -> None:
    apart = DivergedPeers()
    assert apart.take_reports({A: FIRST, B: SECOND}) == [A, B]


def test_a_liar_is_reported_once_whatever_it_sends() -> None:
    apart = DivergedPeers()
    told = []
    for number in range(100):
        told += apart.take_reports({A: RecordId(content_id(bytes([number]))), B: None})
        told += apart.take_reports({A: None})
        assert not apart.peers
    assert told == [A]
