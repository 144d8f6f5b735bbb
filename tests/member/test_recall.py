"""Recall asks every other member for our own messages: once, on connection, for a bounded time."""

from __future__ import annotations

from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.sync import SyncAnswer, SyncQuery
from distro_node.protocol.member.vote_recovery import (
    CHECK_INTERVAL_SECONDS,
    RECALL_SECONDS,
    RecallRequests,
)
from simulation.keys import identity

ROUND = 7
OTHERS = [identity(number).peer for number in range(1, 4)]
STRANGER = identity(9).peer


def recalling() -> RecallRequests:
    return RecallRequests(ROUND, OTHERS, 0.0)


def take_in(machine: RecallRequests, peer: PeerId, *, all_held: bool = True) -> None:
    machine.on_answer(peer, SyncAnswer(ROUND), 0.1)
    assert machine.drain() == [(peer, SyncAnswer(ROUND))]
    machine.note_processed(peer, all_held=all_held)


def test_every_member_is_asked_once_as_soon_as_it_is_connected() -> None:
    machine = recalling()
    first, second, third = OTHERS
    assert machine.requests([STRANGER, second], 0.0) == [SyncQuery(second, ROUND)]
    assert machine.requests([second], 0.1) == []
    assert machine.deadline(0.1) == 0.1 + CHECK_INTERVAL_SECONDS
    asked = machine.requests([first, second, third], 0.5)
    assert {question.peer for question in asked} == {first, third}
    # No member is left to look for.
    assert machine.deadline(0.5) == RECALL_SECONDS


def test_it_is_complete_when_all_have_sent_everything() -> None:
    machine = recalling()
    machine.requests(OTHERS, 0.0)
    for peer in OTHERS:
        assert not machine.complete
        take_in(machine, peer)
    assert machine.complete
    assert machine.requests(OTHERS, 0.2) == []
    assert machine.done


def test_an_answer_that_was_not_listened_to_up_to_its_end_is_none() -> None:
    machine = recalling()
    machine.requests(OTHERS, 0.0)
    for peer in OTHERS:
        take_in(machine, peer, all_held=peer != OTHERS[1])
    assert not machine.complete
    machine.requests(OTHERS, RECALL_SECONDS - 0.1)
    assert not machine.done
    machine.requests(OTHERS, RECALL_SECONDS)
    assert machine.done


def test_who_does_not_answer_is_not_waited_for_beyond_the_time() -> None:
    machine = recalling()
    machine.requests(OTHERS[:2], 0.0)
    machine.on_answer(OTHERS[0], None, 0.1)
    assert machine.drain() == []
    assert machine.deadline(RECALL_SECONDS - CHECK_INTERVAL_SECONDS / 2) == RECALL_SECONDS
    assert machine.requests(OTHERS, RECALL_SECONDS) == []
    assert machine.done
    assert not machine.complete


def test_who_was_not_asked_sends_nothing() -> None:
    machine = recalling()
    machine.requests(OTHERS[:1], 0.0)
    machine.on_answer(OTHERS[1], SyncAnswer(ROUND), 0.1)
    machine.on_answer(STRANGER, SyncAnswer(ROUND), 0.1)
    assert machine.drain() == []
