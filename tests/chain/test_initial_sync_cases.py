"""Rules of initial sync: which peers to ask, how far to follow them, and what an answer must hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from unittest.mock import patch

from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain import initial_sync
from distro_node.protocol.chain.chain_comparison import PeerFault
from distro_node.protocol.chain.initial_sync import InitialSync
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.sync import SyncAnswer, SyncQuery
from distro_node.protocol.wire.messages import Certificate, Decided, SignedBallot
from simulation.chain import Answering, answers, identity
from simulation.known_chains import (
    carried_on,
    caught_up,
    checkpoint,
    compared_with,
    forged_chain,
    lower,
    solo_chain,
    true_chain,
)


def test_checkpoint_is_asked_for() -> None:
    chain = Ledger(true_chain().manifest, checkpoint=checkpoint())
    liars = [answers(forged_chain().ledger)] * 4
    asked, _ = caught_up(chain, [*liars, answers(true_chain().ledger)])
    # One id of each byzantine peer, and nothing more.
    assert chain.head == true_chain().ledger.head
    assert asked <= 5 + 4


def test_wrong_entries_are_given_up() -> None:
    honest, liar = answers(true_chain().ledger), answers(forged_chain().ledger)

    def two_faced(question: SyncQuery) -> SyncAnswer | None:
        return honest(question) if question.most == 0 else liar(question)

    chain = Ledger(true_chain().manifest, checkpoint=checkpoint())
    caught_up(chain, [two_faced, two_faced, honest])
    assert chain.head == true_chain().ledger.head


def test_who_does_not_answer_is_given_up() -> None:
    peers: dict[PeerId, Answering] = {identity(3).peer: lambda question: None}
    compared_with(true_chain().fork().ledger, peers)
    caught_up(Ledger(true_chain().manifest), [lambda question: None, answers(true_chain().ledger)])
    assert True


def test_the_goal_is_what_most_name() -> None:
    """One byzantine peer of four continues alone for 400 rounds."""
    chain = Ledger(true_chain().manifest)
    _, rounds = caught_up(
        chain, [answers(true_chain().ledger)] * 3 + [answers(solo_chain().ledger)]
    )
    assert rounds == len(true_chain().ledger)


def test_records_are_what_most_name() -> None:
    """Of four peers at the same height one has another record there."""
    one = true_chain(11).fork()
    one.grow(fingerprint=666, updates=[])
    chain = Ledger(true_chain().manifest)
    caught_up(chain, [answers(one.ledger)] + [answers(true_chain().ledger)] * 3)
    assert chain.head == true_chain().ledger.head


def test_the_goal_is_bounded() -> None:
    chain = Ledger(true_chain().manifest)
    with patch.object(initial_sync, "_MOST_ROUNDS", 50):
        _, rounds = caught_up(chain, [answers(solo_chain().ledger)] * 3)
    assert rounds == 50


def test_enough_are_asked() -> None:
    asked, _ = caught_up(
        Ledger(true_chain().manifest), [answers(true_chain().ledger)] * 30, most=1000
    )
    assert asked <= 2 * 5 + 2


def test_members_are_asked_first() -> None:
    """Twenty identities of one peer that continues alone, and three former members."""
    chain = true_chain(8).ledger.truncated(8)
    machine = InitialSync(chain)
    honest, alone = answers(true_chain().ledger), answers(solo_chain().ledger)
    members = {identity(who).peer for who in range(3)}
    names = [*(identity(200 + number).peer for number in range(20)), *members]
    while not machine.done:
        for question in machine.questions(names, 0.0):
            answer = (honest if question.peer in members else alone)(question)
            machine.answered(question.peer, answer, 0.0)
    assert len(chain) == len(true_chain().ledger)


def test_who_is_slow_is_not_waited_for() -> None:
    """One answer has arrived, and another peer is slow."""
    machine, names = InitialSync(Ledger(true_chain().manifest)), [identity(n).peer for n in (1, 2)]
    _, question = machine.questions(names, 0.0)
    machine.answered(question.peer, answers(true_chain().ledger)(question), 0.0)
    now = 0.0
    while not machine.questions(names, now):
        now = machine.deadline(now + 0.1)
    assert now < 4.0


# The last certificate of a chain that goes further


FAR = 40
"""Height that a byzantine peer reports."""


def _behind(liar: Callable[[], Decided | None], blamed: list[PeerFault] | None = None) -> bool:
    """Return whether the end is reached in a plausible number of requests. Two peers are a round
    behind, one byzantine peer reports a far greater height and sends this last entry, and one is at the
    end."""
    true = true_chain().ledger
    honest, late = answers(true), answers(true.truncated(len(true) - 1))

    def lying(question: SyncQuery) -> SyncAnswer | None:
        if question.most == 1 and question.round == FAR - 1:
            head = liar()
            return SyncAnswer(FAR, at_hand=[] if head is None else [head])
        answer = late(question)
        return None if answer is None else dataclasses.replace(answer, height=FAR)

    chain = Ledger(true_chain().manifest)
    caught_up(chain, [late, late, lying, honest], most=20, blamed=blamed)
    return chain.head == true.head


def _invented(signers: list[int] | None = None) -> Decided:
    """Return an entry of that height signed by these; without signers, by all members with invalid
    signatures."""
    chain = true_chain()
    record = dataclasses.replace(chain.ledger[5].record, round=FAR - 1)
    if signers is not None:
        peers = [identity(who).peer for who in signers]
        made = chain.certificate(record.id, signers=peers, round=FAR - 1)
        return Decided(record, made)
    ballots = tuple(SignedBallot(peer, b"\0", bytes(64)) for peer in chain.membership.peers)
    return Decided(record, Certificate("finalize", FAR - 1, record.parent, 1, record.id, ballots))


def test_a_head_is_of_the_round_that_was_asked_for() -> None:
    assert _behind(lambda: true_chain().ledger[10])


def test_a_heads_certificate_is_its_own() -> None:
    entry = true_chain().ledger[10]
    assert _behind(
        lambda: Decided(dataclasses.replace(entry.record, round=FAR - 1), entry.certificate)
    )


def test_a_heads_signatures_hold() -> None:
    assert _behind(_invented)


def test_a_heads_signers_are_members() -> None:
    assert _behind(lambda: _invented([50, 51, 52, 53]))


def test_a_height_without_a_head_is_a_lie() -> None:
    blamed: list[PeerFault] = []
    assert _behind(lambda: None, blamed)
    assert blamed[0].text.startswith("it states a height")


def test_heads_are_bounded() -> None:
    """They have the same bound as the goal."""
    far, near = answers(true_chain(30).ledger), answers(true_chain().ledger)
    with patch.object(initial_sync, "_MOST_ROUNDS", 20):
        _, rounds = caught_up(Ledger(true_chain().manifest), [far, near, near, near])
    assert rounds == 20


# Towards the goal


def test_a_height_needs_its_rounds() -> None:
    """The first peer reports what all report, and has no entries."""
    honest = answers(true_chain().ledger)

    def empty(question: SyncQuery) -> SyncAnswer | None:
        answer = honest(question)
        return None if answer is None else dataclasses.replace(answer, at_hand=[])

    _, rounds = caught_up(Ledger(true_chain().manifest), [empty, honest, honest])
    assert rounds == len(true_chain().ledger)


def test_few_strangers_are_asked_beside_members() -> None:
    """Twenty identities of one peer that continues alone, and two members: a third identity would be a
    majority."""
    machine = InitialSync(true_chain().ledger.truncated(8))
    honest, alone = answers(true_chain().ledger), answers(solo_chain().ledger)
    members = [identity(who).peer for who in range(2)]
    names = [*(identity(200 + number).peer for number in range(20)), *members]
    while not machine.done:
        for question in machine.questions(names, 0.0):
            answer = (honest if question.peer in members else alone)(question)
            machine.answered(question.peer, answer, 0.0)
    assert machine.height == len(true_chain().ledger)


def test_members_decide_between_two_records() -> None:
    """Two strangers report one record, with a lower hash, and two members another."""
    true = true_chain().ledger
    peers = true_chain().membership.peers
    other = lower(true_chain(), 11, lambda n: carried_on(true_chain(11), peers, 1, variant=n))
    chain, members = true.truncated(11), [identity(who).peer for who in range(2)]
    machine, names = InitialSync(chain), [*(identity(200 + n).peer for n in range(2)), *members]
    while not machine.done:
        for question in machine.questions(names, 0.0):
            honest = question.peer in members
            answer = answers(true if honest else other.ledger)(question)
            machine.answered(question.peer, answer, 0.0)
    assert chain.head == true.head


def test_so_many_entries_are_asked_for() -> None:
    honest, wanted = answers(true_chain().ledger), []

    def noting(question: SyncQuery) -> SyncAnswer | None:
        wanted.append(question.most)
        return honest(question)

    with patch.object(initial_sync, "_PORTION", 5):
        caught_up(Ledger(true_chain().manifest), [noting] * 3)
    assert max(wanted) == 5


# A checkpoint


def test_who_breaks_off_makes_no_others_wrong() -> None:
    """A few forged entries, and then no answer: the honest peer's entries do not follow them."""
    honest, forged = answers(true_chain().ledger), answers(forged_chain().ledger.truncated(5))

    def breaks_off(question: SyncQuery) -> SyncAnswer | None:
        if question.most == 0:
            return honest(question)
        return forged(question) if question.round == 0 else None

    chain = Ledger(true_chain().manifest, checkpoint=checkpoint())
    caught_up(chain, [breaks_off, honest])
    assert chain.head == true_chain().ledger.head


def test_an_own_chain_that_is_not_the_checkpoints_is_given_up() -> None:
    chain = Ledger(true_chain().manifest, checkpoint=checkpoint())
    for round_ in range(6):
        chain.append(forged_chain().ledger[round_])
    caught_up(chain, [answers(true_chain().ledger)] * 3)
    assert chain.head == true_chain().ledger.head


def test_who_is_behind_the_checkpoint_is_of_no_use() -> None:
    chain = Ledger(true_chain().manifest, checkpoint=checkpoint())
    behind: Answering = answers(true_chain().ledger.truncated(8))
    assert caught_up(chain, [behind] * 3)[1] == 0
