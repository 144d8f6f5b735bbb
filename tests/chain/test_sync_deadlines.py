"""Sync state machines finish, and their deadlines lie where there is something to do: otherwise their
callers would loop without progress."""

from __future__ import annotations

import pytest
from distro_node.protocol.chain.fork_search import ChainComparison, FetchBackoff
from distro_node.protocol.chain.initial_sync import DAWDLE_SECONDS, InitialSync
from distro_node.protocol.chain.sync import SyncAnswer, answer_to
from simulation.chain import Chain
from simulation.keys import identity

PEERS = [identity(index).peer for index in range(4)]


@pytest.mark.parametrize("began", [0.0, 12.089, 22.169, 54.141])
def test_who_does_not_answer_is_given_up_at_the_very_time(began: float) -> None:
    """Float sums are rounded: ten seconds after a time may be less than ten seconds later."""
    ledger = Chain(4).ledger
    comparison = ChainComparison(ledger, PEERS[1:2], FetchBackoff(), me=PEERS[0], abandoned=False)
    catching_up = InitialSync(ledger)
    assert comparison.requests(began)
    assert catching_up.requests(PEERS[1:2], began)
    comparison.requests(comparison.deadline(began))
    catching_up.requests(PEERS[1:2], catching_up.deadline(began))
    assert comparison.done
    assert catching_up.done


def test_who_was_asked_later_is_waited_for_without_a_circle() -> None:
    """One has answered, one is slow, and one was asked in the place of one that is gone."""
    ledger = Chain(4).ledger
    catching_up = InitialSync(ledger)
    answered, slow, gone, later = PEERS
    assert len(catching_up.requests([answered, slow, gone], 0.0)) == 3
    catching_up.on_answer(answered, SyncAnswer(len(ledger), (ledger.head,)), 0.1)
    catching_up.on_answer(gone, None, 2.0)
    assert [question.peer for question in catching_up.requests([slow, later], 2.0)] == [later]
    again = catching_up.deadline(DAWDLE_SECONDS)
    assert again > DAWDLE_SECONDS
    catching_up.requests([slow, later], again)
    assert catching_up.done


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_one_that_is_ahead_with_proof_is_followed_to_its_end(ahead: int) -> None:
    """Also one round ahead: its last certificate is requested, and then that round."""
    chain = Chain(4)
    while len(chain.ledger) < 8:
        chain.grow()
    full = chain.ledger
    here = {peer: full.truncated(8 - ahead) for peer in PEERS[1:3]} | {PEERS[3]: full}
    ledger = full.truncated(2)
    catching_up, now, asked = InitialSync(ledger), 0.0, 0
    while not catching_up.done:
        questions = catching_up.requests(PEERS[1:], now)
        asked += len(questions)
        assert asked < 20
        now += 0.1
        for question in questions:
            theirs = here[question.peer]
            request = question.request(full.swarm)
            height, ids, rounds, _ = answer_to(request, theirs, lambda round_: [])
            answer = SyncAnswer(height, ids, at_hand=[theirs[number] for number in rounds])
            assert catching_up.on_answer(question.peer, answer, now) is None
    assert ledger.head == full.head
