"""Rules of chain comparison: which peers to ask for their chain, at what cost, and when to give up."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from unittest.mock import patch

from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain import fork_search
from distro_node.protocol.chain.fork_search import ChainComparison, FetchBackoff
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.sync import SyncAnswer, SyncQuery, decode_request
from distro_node.protocol.wire.checkpoint import Checkpoint
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import Decided, RecordId
from simulation.chain import Answering, Chain, answers, compared, identity
from simulation.known_chains import (
    carried_on,
    compared_with,
    forged_chain,
    sides,
    solo_chain,
    true_chain,
)

# Private here: `_backwards`, `_between`: their probes in chains that are too long for a test.


def test_one_peers_rounds_are_bounded() -> None:
    """A chain of 400 rounds, of which at most 100 are examined."""
    ours = sides(0, 1, 2, rounds=1).ledger
    with patch.object(fork_search, "COMPARED_ROUNDS", 100):
        asked, _ = compared_with(ours, {identity(3).peer: answers(solo_chain().ledger)})
    assert sum(question.most for question in asked) <= 3 * fork_search._PORTION


def test_one_peers_bytes_are_bounded() -> None:
    ours = sides(0, 1, 2, rounds=1).ledger
    honest = answers(solo_chain().ledger)

    def long(question: SyncQuery) -> SyncAnswer | None:
        answer = honest(question)
        return None if answer is None else dataclasses.replace(answer, size=16 << 20)

    asked, _ = compared_with(ours, {identity(3).peer: long})
    assert sum(question.most > 0 for question in asked) == 1


def test_so_many_are_asked() -> None:
    ours = sides(0, 1, 2, rounds=1).ledger
    strangers = {
        identity(200 + number).peer: answers(solo_chain(60).ledger) for number in range(40)
    }
    asked, _ = compared_with(ours, strangers)
    assert len({question.peer for question in asked}) <= 4


def test_who_was_asked_in_vain_rests() -> None:
    ours, rests = sides(0, 1, 2, rounds=1).ledger, FetchBackoff()
    peers = {identity(3).peer: answers(solo_chain(60).ledger)}
    first, _ = compared_with(ours, peers, rests)
    again, _ = compared_with(ours, peers, rests, now=5.0)
    later, _ = compared_with(ours, peers, rests, now=500.0)
    moved = [any(question.most for question in asked) for asked in (first, again, later)]
    assert moved == [True, False, True]


FAKE = RecordId(content_id(b"no record"))


def test_members_are_not_crowded_out() -> None:
    """Twenty identities, which cost nothing, come before the members."""
    peers: dict[PeerId, Answering] = {
        identity(200 + number).peer: lambda question: None for number in range(20)
    }
    peers[identity(1).peer] = answers(sides(0, 1, 2).ledger)
    assert compared_with(solo_chain(40).ledger, peers)[1] is not None


def _silent_members(count: int) -> tuple[Ledger, dict[PeerId, Answering]]:
    chain = Chain(count).grow_until(2)
    return chain.ledger, {peer: lambda question: None for peer in chain.membership.peers}


def test_so_many_members_are_asked() -> None:
    asked, _ = compared_with(*_silent_members(20))
    assert len({question.peer for question in asked}) <= 12


def test_so_many_are_asked_at_a_time() -> None:
    ours, peers = _silent_members(12)
    machine = ChainComparison(ours, peers, FetchBackoff(), me=identity(0).peer, abandoned=False)
    assert len(machine.requests(0.0)) <= 4


def test_a_search_ends() -> None:
    """A peer that varies its reported height leads the search through all of our chain."""
    ours, turn = solo_chain().fork().ledger, 0

    def winding(question: SyncQuery) -> SyncAnswer:
        nonlocal turn
        turn += 1
        true = [ours.parent(probe + 1) for probe in question.probes]
        if turn == 1:
            return SyncAnswer(len(ours), (true[0], *[FAKE] * len(true[1:])))
        return (
            SyncAnswer(question.probes[0]) if turn % 2 == 0 else SyncAnswer(len(ours), tuple(true))
        )

    asked, _ = compared_with(ours, {identity(3).peer: winding})
    assert len(asked) <= 6


def test_questions_are_such_as_are_answered() -> None:
    """The probes fit a request, however long the chains are."""
    for probes in (fork_search._backwards(1 << 40, 0), fork_search._between(0, 1 << 20)):
        question = SyncQuery(identity(1).peer, 0, probes=probes, most=0)
        request = question.request(bytes(32))
        assert len(probes) > 1
        assert decode_request(encode(request)) == request


def test_a_strangers_message_is_not_noted() -> None:
    ours, stranger = true_chain().ledger, identity(40).peer
    ours.binding = True
    machine = ChainComparison(
        ours, [stranger], FetchBackoff(), me=identity(0).peer, abandoned=False
    )
    (question,) = machine.requests(0.0)
    machine.on_answer(stranger, answers(forged_chain().ledger)(question), 0.0)
    assert machine.done
    assert machine.reported == {}


def _is_blamed(ours: Chain, liar: Answering) -> bool:
    try:
        compared(ours.ledger, liar)
    except ProtocolError as error:
        return error.reason == "invalid"
    return False


def test_our_own_records_are_no_other_chain() -> None:
    """The peer reports other ids, and then sends the entries that we have."""
    ours = sides(0, 1, 2)
    honest = answers(ours.ledger)

    def liar(question: SyncQuery) -> SyncAnswer | None:
        answer = honest(question)
        assert answer is not None
        known = ours.ledger.floor - 1
        ids = zip(question.probes, answer.ids, strict=True)
        return dataclasses.replace(
            answer, ids=tuple(true if probe == known else FAKE for probe, true in ids)
        )

    assert _is_blamed(ours, liar)


def test_a_height_needs_its_rounds() -> None:
    """The peer sends a few entries, and then none, again and again."""
    honest, given = answers(solo_chain().ledger), 0

    def liar(question: SyncQuery) -> SyncAnswer | None:
        nonlocal given
        answer = honest(question)
        assert answer is not None
        if question.most:
            given += 1
            assert given < 10
            answer = dataclasses.replace(answer, at_hand=answer.at_hand[: 3 if given == 1 else 0])
        return answer

    assert _is_blamed(sides(0, 1, 2, rounds=1), liar)


class _Read(list[Decided]):
    """Entries that count how many of them are read."""

    read = 0

    def __iter__(self) -> Iterator[Decided]:
        for entry in super().__iter__():
            self.read += 1
            yield entry


def test_an_answer_is_read_as_far_as_it_was_asked_for() -> None:
    """All entries where 64 were requested: each costs several signature checks."""
    chain, given = solo_chain().ledger, []

    def long(question: SyncQuery) -> SyncAnswer | None:
        if question.most == 0:
            return answers(chain)(question)
        given.append(_Read(chain[round_] for round_ in range(question.round, len(chain))))
        return SyncAnswer(len(chain), at_hand=given[-1])

    with patch.object(fork_search, "COMPARED_ROUNDS", 100):
        compared(sides(0, 1, 2, rounds=1).ledger, long)
    assert bool(given)
    assert all(entries.read <= 64 for entries in given)


def test_up_to_a_checkpoint_all_is_fetched() -> None:
    """A shorter part may be of either chain: ours was forged."""
    true = solo_chain()
    at = Checkpoint(60, true.ledger.parent(61))
    ours = Ledger(true.manifest, checkpoint=at)
    for round_ in range(len(forged_chain().ledger)):
        ours.append(forged_chain().ledger[round_])
    small = (
        patch.object(fork_search, "COMPARED_ROUNDS", 20),
        patch.object(fork_search, "_PORTION", 10),
    )
    with small[0], small[1]:
        _, better = compared_with(ours, {identity(3).peer: answers(true.ledger)})
    assert better is not None
    assert better.anchored


def test_what_is_decided_is_fetched_no_further() -> None:
    with patch.object(fork_search, "_PORTION", 2):
        asked, better = compared_with(
            solo_chain(40).ledger, {identity(0).peer: answers(sides(0, 1, 2).ledger)}
        )
    assert better is not None
    assert sum(question.most > 0 for question in asked) == 1


def test_who_lies_rests() -> None:
    honest, liar = answers(solo_chain(60).ledger), answers(true_chain().ledger)

    def two_faced(question: SyncQuery) -> SyncAnswer | None:
        return liar(dataclasses.replace(question, round=3)) if question.most else honest(question)

    ours, rests = sides(0, 1, 2, rounds=1).ledger, FetchBackoff()
    peers = {identity(3).peer: two_faced}
    comparisons = [compared_with(ours, peers, rests, now=now)[0] for now in (0.0, 5.0)]
    assert [any(question.most for question in asked) for asked in comparisons] == [True, False]


def test_nobody_rests_for_ever() -> None:
    """A peer that is of no use today may be useful tomorrow."""
    peer, rests = identity(3).peer, FetchBackoff()
    for _ in range(20):
        rests.failed(peer, 0.0)
    assert rests.rests(peer, 159.0)
    assert not rests.rests(peer, 161.0)


# Changes during a comparison


def _found(ours: Chain, theirs: Chain) -> ChainComparison:
    """Return a finished comparison with `theirs`, made with a copy of ours."""
    ours.ledger.binding = True
    me, peer = ours.membership.peers[0], ours.manifest.founder
    seen = ours.ledger.truncated(ours.round)
    machine = ChainComparison(seen, [peer], FetchBackoff(), me=me, abandoned=False)
    while not machine.done:
        for question in machine.requests(0.0):
            machine.on_answer(peer, answers(theirs.ledger)(question), 0.0)
    assert machine.better_than(ours.ledger) is machine.better is not None
    return machine


def _parted(theirs: int, rounds: int) -> tuple[Chain, ChainComparison]:
    """Let `theirs` of five members continue with another chain, which was preferred."""
    chain = Chain(5).grow_until(3)
    peers = chain.membership.peers
    ours = carried_on(chain, peers[: 5 - theirs])
    return ours, _found(ours, carried_on(chain, peers[5 - theirs :], rounds))


def _together_again(ours: Chain, rounds: int) -> None:
    """Let the others return to our chain during the comparison."""
    away = [who for who in range(5) if identity(who).peer not in ours.membership]
    ours.grow(admitted=[ours.admission(who) for who in away])
    ours.grow_until(ours.round + rounds)


def test_what_became_justified_meanwhile_stays() -> None:
    ours, machine = _parted(3, 3)
    _together_again(ours, 1)
    assert ours.ledger.final_round < 3 <= ours.ledger.justified_round
    assert machine.better_than(ours.ledger) is None


def test_but_for_what_is_final() -> None:
    ours, machine = _parted(4, 4)
    _together_again(ours, 1)
    assert ours.ledger.final_round < 3 <= ours.ledger.justified_round
    assert machine.better_than(ours.ledger) is machine.better
