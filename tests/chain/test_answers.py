"""Sync answers: what one may cost, and which peers' memory a node waits for."""

from __future__ import annotations

from typing import Any

from distro_node.crypto.envelope import Envelope, EnvelopeError
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.sync import SyncAnswer
from distro_node.protocol.member.sync_ingest import AnswerIngest
from distro_node.protocol.member.vote_recovery import RecallRequests
from simulation.chain import identity
from simulation.known_chains import true_chain


def test_a_forged_message_ends_an_answer() -> None:
    """Of a thousand forged messages one is checked, and the sender is blamed."""
    checked: list[int] = []

    def opened(word: int) -> Envelope:
        checked.append(word)
        raise EnvelopeError("bad_signature", "nobody signed that")

    taking = AnswerIngest(identity(1).peer, [], range(1000), opened)
    _take_in(taking)
    assert len(checked) == 1
    assert taking.blame is not None


def test_a_refused_entry_ends_an_answer() -> None:
    """Entries of another chain: one is examined, and the sender is not blamed."""
    entries = [true_chain().ledger[round_] for round_ in range(10)]
    taking: AnswerIngest[Envelope] = AnswerIngest(identity(1).peer, entries, [], lambda word: word)
    assert _take_in(taking, refuses=True) == 1
    assert taking.blame is None
    assert not taking.all_held


def _take_in(taking: AnswerIngest[Any], *, refuses: bool = False) -> int:
    """Return how many inputs the member receives."""
    count = 0
    while taking.next_input() is not None:
        count += 1
        if refuses:
            taking.refused()
    return count


def test_all_are_recalled() -> None:
    """Of three peers one has no messages of ours, one answers late, and one answer is cut short."""
    machine, peers = RecallRequests(3, _others(), 0.0), _others()
    machine.requests(peers[:2], 0.0)
    machine.on_answer(peers[0], SyncAnswer(3), 0.1)
    _receive(machine, all_held=True)
    first = machine.complete
    machine.requests(peers, 0.5)
    machine.on_answer(peers[1], SyncAnswer(3), 1.0)
    machine.on_answer(peers[2], SyncAnswer(3), 1.0)
    _receive(machine, all_held=False)
    assert not first
    assert not machine.complete


def _others() -> list[PeerId]:
    return [identity(number).peer for number in range(1, 4)]


def _receive(machine: RecallRequests, *, all_held: bool) -> None:
    for peer, _ in machine.drain():
        machine.note_processed(peer, all_held=all_held)


def test_who_comes_late_is_asked() -> None:
    machine, peers = RecallRequests(3, _others(), 0.0), _others()
    asked = [q.peer for now in (0.0, 1.0) for q in machine.requests(peers[: 1 + int(now)], now)]
    assert asked == peers[:2]
    assert machine.deadline(1.0) < 1.5


def test_memory_is_not_waited_for_for_ever() -> None:
    machine = RecallRequests(3, _others(), 0.0)
    machine.requests(_others(), 10.0)
    assert machine.done
