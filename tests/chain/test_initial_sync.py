"""Initial sync: which peers set the goal, and what a checkpoint saves a newcomer from."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.initial_sync import MAX_ASKED_PEERS, InitialSync
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.sync import SyncAnswer, SyncQuery
from distro_node.protocol.wire.checkpoint import Checkpoint
from simulation.chain import Answering, Chain, answers, identity

ROUNDS = 20
AT = 12
# Far more than any sync takes.
_MOST_QUESTIONS = 200


@pytest.fixture(scope="module")
def true() -> Chain:
    return Chain(6).grow_until(ROUNDS)


@pytest.fixture(scope="module")
def forged(true: Chain) -> Chain:
    """Rounds without end that the founder, which was alone in round 0, can sign at any time."""
    return true.forged(40)


@pytest.fixture(scope="module")
def at(true: Chain) -> Checkpoint:
    return Checkpoint(AT, true.ledger.parent(AT + 1))


def catch_up(
    ledger: Ledger,
    answering: list[Answering],
    order: Callable[[list[PeerId]], None] = lambda p: None,
) -> tuple[InitialSync, dict[PeerId, str]]:
    """Ask these peers, numbered from 0, until the sync is done; return the reasons of the blamed
    ones."""
    machine = InitialSync(ledger)
    peers = {identity(100 + place).peer: one for place, one in enumerate(answering)}
    kept = [ledger.raw(number) for number in range(len(ledger))]
    blamed: dict[PeerId, str] = {}
    asked = 0
    while True:
        connected = list(peers)
        order(connected)
        questions = machine.requests(connected, 0.0)
        if machine.done:
            break
        for question in questions:
            asked += 1
            assert asked < _MOST_QUESTIONS
            blame = machine.on_answer(question.peer, peers[question.peer](question), 0.0)
            if blame is not None:
                blamed[blame.peer] = blame.reason
        if machine.rewound():
            kept.clear()
        kept += [ledger.raw(decided.record.round) for decided in machine.drain()]
    # The drained entries are those of the ledger.
    assert kept == [ledger.raw(number) for number in range(len(ledger))]
    return machine, blamed


def whole(ledger: Ledger, true: Chain) -> bool:
    return ledger.head == true.ledger.head


def two_faced(true: Ledger, forged: Ledger) -> Answering:
    """A peer that reports the ids of the true chain, and sends entries of the other."""
    honest, liar = answers(true), answers(forged)

    def answer(question: SyncQuery) -> SyncAnswer | None:
        if question.probes or question.most == 0:
            return honest(question)
        return liar(question)

    return answer


def test_a_newcomer_with_a_checkpoint_is_not_outnumbered(
    true: Chain, forged: Chain, at: Checkpoint
) -> None:
    ledger = Ledger(true.manifest, checkpoint=at)
    machine, blamed = catch_up(ledger, [answers(forged.ledger)] * 9 + [answers(true.ledger)])
    assert machine.found
    assert whole(ledger, true)
    assert len(blamed) == 9
    assert set(blamed.values()) == {"checkpoint"}
    # Without one, as with an older link, it believes the majority of the asked peers.
    ledger = Ledger(true.manifest)
    catch_up(ledger, [answers(forged.ledger)] * 4 + [answers(true.ledger)])
    assert ledger.head == forged.ledger.head


def test_right_ids_and_wrong_entries_are_found_out(
    true: Chain, forged: Chain, at: Checkpoint
) -> None:
    ledger = Ledger(true.manifest, checkpoint=at)
    liar = two_faced(true.ledger, forged.ledger)
    _, blamed = catch_up(ledger, [liar, liar, liar, answers(true.ledger)])
    assert whole(ledger, true)
    assert list(blamed.values()) == ["checkpoint"] * 3


def test_a_liar_that_breaks_off_does_not_make_the_others_wrong(
    true: Chain, forged: Chain, at: Checkpoint
) -> None:
    ledger = Ledger(true.manifest, checkpoint=at)
    short = answers(forged.ledger.truncated(5))
    honest = answers(true.ledger)

    def breaks_off(question: SyncQuery) -> SyncAnswer | None:
        if question.probes or question.most == 0:
            return honest(question)
        return short(question) if question.round == 0 else None

    _, blamed = catch_up(ledger, [breaks_off, honest, honest])
    assert whole(ledger, true)
    assert not blamed


def test_a_ledger_that_is_not_the_checkpoints_is_given_up(
    true: Chain, forged: Chain, at: Checkpoint
) -> None:
    ledger = Ledger(true.manifest, checkpoint=at)
    for round_ in range(AT - 2):
        ledger.append(forged.ledger[round_])
    catch_up(ledger, [answers(true.ledger)] * 3)
    assert whole(ledger, true)


def test_who_is_not_that_far_is_of_no_use(true: Chain, at: Checkpoint) -> None:
    ledger = Ledger(true.manifest, checkpoint=at)
    machine, blamed = catch_up(ledger, [answers(true.ledger.truncated(AT))] * 3)
    assert not machine.found
    assert len(ledger) == 0
    assert not blamed


def test_one_that_is_a_round_ahead_is_followed_once(true: Chain) -> None:
    """It proves its height by its last certificate, and then sends that very entry."""
    ledger = Ledger(true.manifest)
    behind = answers(true.ledger.truncated(ROUNDS - 1))
    machine, _ = catch_up(ledger, [behind, behind, answers(true.ledger)])
    assert machine.done
    assert whole(ledger, true)


@pytest.mark.parametrize("members", [1, 3])
def test_members_that_our_chain_knows_are_asked_before_names_that_are_free(
    true: Chain, members: int
) -> None:
    ledger = true.ledger.truncated(AT)
    known = [identity(number).peer for number in range(members)]
    crowd = [identity(100 + number).peer for number in range(20)]
    machine = InitialSync(ledger)
    asked: list[PeerId] = []
    while questions := machine.requests([*crowd, *known], 0.0):
        for question in questions:
            asked.append(question.peer)
            if machine.height == AT:
                machine.on_answer(question.peer, SyncAnswer(AT, (ledger.head,)), 0.0)
    assert asked[:members] == known
    assert len(asked) == max(members + 2, min(2 * members, MAX_ASKED_PEERS))


def test_of_two_records_that_as_many_name_the_one_that_members_name_is_taken(true: Chain) -> None:
    other = true.fork()
    other.ledger = true.ledger.truncated(ROUNDS - 1)
    other.grow(fingerprint=666, updates=[])
    ledger = true.ledger.truncated(AT)
    names = {identity(number).peer: answers(true.ledger) for number in range(2)}
    names |= {identity(100 + number).peer: answers(other.ledger) for number in range(2)}
    machine = InitialSync(ledger)
    while not machine.done:
        for question in machine.requests([*reversed(names)], 0.0):
            machine.on_answer(question.peer, names[question.peer](question), 0.0)
    assert ledger.head == true.ledger.head


@pytest.mark.parametrize("further", [True, False])
def test_after_a_tie_further_peers_are_waited_for(
    true: Chain, forged: Chain, *, further: bool
) -> None:
    """Of two peers that a newcomer reaches first one is byzantine, and either record may come first in
    the order of ids."""
    for liars in ([true.ledger, forged.ledger], [forged.ledger, true.ledger]):
        first = {identity(100 + place).peer: answers(chain) for place, chain in enumerate(liars)}
        late = {identity(200).peer: answers(true.ledger)} if further else {}
        ledger = true.ledger.truncated(0)
        machine, now = InitialSync(ledger), 10.0
        peers = first
        while True:
            questions = machine.requests([*peers], now)
            if machine.done:
                break
            for question in questions:
                machine.on_answer(question.peer, peers[question.peer](question), now)
            if not questions:
                # It waits, and looks for peers often enough.
                assert now < machine.deadline(now) < now + 0.5
                now = machine.deadline(now)
                peers = first | late if now >= 11.5 else first
        assert machine.found
        if further:
            assert whole(ledger, true)
        else:
            # Nobody else is there: it follows one of them, and fork choice judges the other later.
            assert now == pytest.approx(13.0)
            assert len(ledger) > 0
