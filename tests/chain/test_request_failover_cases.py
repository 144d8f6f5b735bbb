"""Rules of requests with failover: the node waits for no single peer, nor for ever."""

from __future__ import annotations

from distro_node.protocol.chain.request_failover import PeerFailover
from distro_node.protocol.chain.sync import SyncAnswer
from simulation.chain import identity

SIX = [identity(number).peer for number in range(6)]


def test_nobody_is_waited_for_alone() -> None:
    slow, other = identity(1).peer, identity(2).peer
    asking_ = PeerFailover([slow, other], {slow}, 3)
    first = asking_.questions(0.0)
    after = asking_.deadline(0.0)
    second = asking_.questions(after)
    assert after < 10.0
    assert [q.peer for q in (*first, *second)] == [slow, other]


def test_few_are_asked_at_a_time() -> None:
    """Six peers, all of them slow."""
    machine = PeerFailover(SIX, set(), 3)
    assert sum(len(machine.questions(float(now))) for now in range(50)) == 3


def test_who_never_answers_is_given_up() -> None:
    machine, now = PeerFailover(SIX, set(), 3), 0.0
    while not machine.done and now < 1000.0:
        machine.questions(now)
        now += 1.0
    # Two waves of three.
    assert machine.done
    assert now < 140.0


def test_members_come_first() -> None:
    (question,) = PeerFailover(SIX, {SIX[4]}, 3).questions(0.0)
    assert question.peer == SIX[4]


def test_the_first_answer_counts() -> None:
    """A later answer may hold anything, and would be processed as well."""
    machine = PeerFailover(SIX, set(), 3)
    machine.questions(0.0)
    machine.questions(5.0)
    machine.answered(SIX[1], SyncAnswer(9), 6.0)
    machine.answered(SIX[0], SyncAnswer(1000), 7.0)
    assert machine.done
    assert machine.found == (SIX[1], SyncAnswer(9))


def test_nobody_unasked_answers() -> None:
    machine = PeerFailover(SIX, set(), 3)
    machine.questions(0.0)
    machine.answered(SIX[5], SyncAnswer(9), 0.1)
    assert machine.found is None
