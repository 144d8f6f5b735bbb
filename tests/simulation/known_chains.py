"""Chains that several tests need, made before any rule is disabled, and peers that answer at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.fork_search import ChainComparison, FetchBackoff, PeerFault
from distro_node.protocol.chain.initial_sync import InitialSync
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.sync import SyncQuery
from distro_node.protocol.wire.checkpoint import Checkpoint
from simulation.chain import Answering, Chain, identity


@cache
def _true_chain(rounds: int, members: int) -> Chain:
    return Chain(members).grow_until(rounds)


def true_chain(rounds: int = 12, members: int = 4) -> Chain:
    """Return a chain of quiet rounds of some members. It is a copy: what one test's member makes of its
    ledger, such as that it binds, is nothing to the next test."""
    return _true_chain(rounds, members).fork()


@cache
def forged_chain() -> Chain:
    """Return a chain of the same swarm that the founder made alone."""
    return true_chain().forged(40)


@cache
def solo_chain(rounds: int = 400) -> Chain:
    """Return the true chain followed by rounds that one member signed alone, calling all others
    silent."""
    chain = true_chain().fork()
    split(chain, 3)
    while chain.round < rounds:
        chain.grow()
    return chain


def split(chain: Chain, *stay: int, **parts: Any) -> None:
    """Append a round in which these members go on alone, calling the others silent."""
    here = [identity(who).peer for who in stay]
    lost = [peer for peer in chain.membership.peers if peer not in here]
    chain.grow(signers=here, silent=lost, departed=[chain.silence(peer) for peer in lost], **parts)


def sides(*stay: int, rounds: int = 3) -> Chain:
    """Return the true chain followed by rounds that these members made alone."""
    side = true_chain().fork()
    split(side, *stay)
    for _ in range(rounds):
        side.grow()
    return side


def carried_on(chain: Chain, here: Sequence[PeerId], rounds: int = 2, *, variant: int = 0) -> Chain:
    """Return `chain` continued by the members `here` alone; each variant has other ids."""
    side = chain.fork()
    for _ in range(rounds):
        gone = [peer for peer in side.membership.peers if peer not in here]
        updates = [side.update(peer, tokens=500 + variant) for peer in here]
        departed = [side.silence(peer) for peer in gone]
        side.grow(silent=gone, signers=list(here), updates=updates, departed=departed)
    return side


def lower(other: Chain, fork: int, make: Callable[[int], Chain]) -> Chain:
    """Return the first chain, made with different numbers, that the hash prefers to `other`."""
    made = map(make, range(1000))
    return next(c for c in made if c.ledger[fork].record.id < other.ledger[fork].record.id)


def caught_up(
    chain: Ledger, peers: list[Answering], most: int = 60, *, blamed: list[PeerFault] | None = None
) -> tuple[int, int]:
    """Let a ledger catch up; return the number of questions asked, and of rounds that it then has."""
    machine = InitialSync(chain)
    answering = {identity(100 + place).peer: one for place, one in enumerate(peers)}
    asked, now = 0, 0.0
    while not machine.done:
        questions = machine.requests(list(answering), now)
        for question in questions:
            asked += 1
            assert asked <= most
            answer = answering[question.peer](question)
            if answer is not None:
                blame = machine.on_answer(question.peer, answer, now)
                if blame is not None and blamed is not None:
                    blamed.append(blame)
        if not questions:
            now += 1.0
            assert now < 1000.0
    return asked, len(chain)


def compared_with(
    ours: Ledger,
    peers: dict[PeerId, Answering],
    rests: FetchBackoff | None = None,
    now: float = 0.0,
) -> tuple[list[SyncQuery], Ledger | None]:
    """Compare chains; return the questions asked, and the better chain."""
    ours.binding = True
    machine = ChainComparison(
        ours,
        peers,
        FetchBackoff() if rests is None else rests,
        me=identity(0).peer,
        abandoned=False,
    )
    asked: list[SyncQuery] = []
    while not machine.done:
        questions = machine.requests(now)
        asked += questions
        assert len(asked) < 1000
        for question in questions:
            answer = peers[question.peer](question)
            if answer is not None:
                machine.on_answer(question.peer, answer, now)
        if not questions:
            now += 1.0
            assert now < 1000.0
    return asked, machine.better


def checkpoint() -> Checkpoint:
    """Return a final record of the true chain."""
    return Checkpoint(8, true_chain().ledger.parent(9))
