"""Rules of initial sync: which peers to ask, how far to follow them, and what an answer must hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from unittest.mock import patch

from distro_node.protocol.chain import initial_sync
from distro_node.protocol.chain.fork_search import PeerFault
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.sync import SyncAnswer, SyncQuery
from distro_node.protocol.wire.messages import Certificate, Decided, SignedBallot
from simulation.chain import answers, identity
from simulation.known_chains import (
    caught_up,
    solo_chain,
    true_chain,
)


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


def test_so_many_entries_are_asked_for() -> None:
    honest, wanted = answers(true_chain().ledger), []

    def noting(question: SyncQuery) -> SyncAnswer | None:
        wanted.append(question.most)
        return honest(question)

    with patch.object(initial_sync, "_PORTION", 5):
        caught_up(Ledger(true_chain().manifest), [noting] * 3)
    assert max(wanted) == 5
