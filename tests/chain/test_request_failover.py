"""Sync requests with failover: the node waits for no single peer."""

from __future__ import annotations

from distro_node.protocol.chain.request_failover import (
    AT_ONCE,
    DAWDLE_SECONDS,
    PATIENCE_SECONDS,
    PeerFailover,
)
from distro_node.protocol.chain.sync import SyncAnswer
from simulation.keys import identity

PEERS = [identity(number).peer for number in range(6)]
ROUND = 7


def asked(asking: PeerFailover, now: float) -> list[bytes]:
    questions = asking.requests(now)
    assert all(question.round == ROUND and question.most > 0 for question in questions)
    return [question.peer for question in questions]


def test_members_are_asked_first() -> None:
    asking = PeerFailover(PEERS, {PEERS[3]}, ROUND)
    assert asked(asking, 0.0) == [PEERS[3]]


def test_the_next_one_is_asked_when_one_dawdles_and_the_first_answer_counts() -> None:
    asking = PeerFailover(PEERS, set(), ROUND)
    assert asked(asking, 0.0) == [PEERS[0]]
    assert asked(asking, DAWDLE_SECONDS / 2) == []
    assert asking.deadline(DAWDLE_SECONDS / 2) == DAWDLE_SECONDS
    assert asked(asking, DAWDLE_SECONDS) == [PEERS[1]]
    asking.on_answer(PEERS[1], SyncAnswer(9), DAWDLE_SECONDS + 1)
    assert asking.done
    asking.on_answer(PEERS[0], SyncAnswer(1000), DAWDLE_SECONDS + 2)
    assert asking.found == (PEERS[1], SyncAnswer(9))


def test_the_next_one_is_asked_at_once_when_one_fails() -> None:
    asking = PeerFailover(PEERS[:2], set(), ROUND)
    assert asked(asking, 0.0) == [PEERS[0]]
    asking.on_answer(PEERS[0], None, 0.1)
    assert asked(asking, 0.1) == [PEERS[1]]
    asking.on_answer(PEERS[1], None, 0.2)
    assert asking.done
    assert asking.found is None


def test_few_are_asked_at_a_time_and_each_is_given_up_in_the_end() -> None:
    asking = PeerFailover(PEERS, set(), ROUND)
    now, wakes = 0.0, 0
    while not asking.done:
        asked(asking, now)
        assert wakes < 100
        if not asking.done:
            assert asking.deadline(now) > now
            now, wakes = asking.deadline(now), wakes + 1
    # Two waves, each of the number of peers asked at a time.
    assert len(PEERS) == 2 * AT_ONCE
    assert 2 * PATIENCE_SECONDS <= now <= 2 * PATIENCE_SECONDS + AT_ONCE * DAWDLE_SECONDS
    assert asking.found is None


def test_nobody_asked_cannot_answer() -> None:
    asking = PeerFailover(PEERS, set(), ROUND)
    asked(asking, 0.0)
    asking.on_answer(PEERS[4], SyncAnswer(9), 0.1)
    assert asking.found is None


def test_alone_it_is_done_at_once() -> None:
    assert PeerFailover([], set(), ROUND).done
