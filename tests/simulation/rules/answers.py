"""Rules of taking in answers: what one may cost, and whose memory a node waits for."""

from __future__ import annotations

from typing import Any

from distro_node.crypto.envelope import Envelope, EnvelopeError
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.sync import Answer
from distro_node.protocol.member import vote_recovery
from distro_node.protocol.member.taking_in import TakingIn
from distro_node.protocol.member.vote_recovery import Recalling

from ..chain import identity
from .chains import true_chain
from .rule import Patch, Rule, put


def _a_forged_word_ends_an_answer() -> bool:
    """Of a thousand forged messages one is checked, and its bearer blamed."""
    checked: list[int] = []

    def opened(word: int) -> Envelope:
        checked.append(word)
        raise EnvelopeError("bad_signature", "nobody signed that")

    taking = TakingIn(identity(1).peer, [], range(1000), opened)
    _take_in(taking)
    return len(checked) == 1 and taking.blame is not None


def _takes_the_next_one() -> list[Patch]:
    original = TakingIn.next_input

    def next_input(self: Any) -> Any:
        what = original(self)
        while what is None and self.blame is not None:
            self.blame, self._ended = None, False
            what = original(self)
        return what

    return [(TakingIn, "next_input", next_input)]


def _a_refused_entry_ends_an_answer() -> bool:
    """A chain of others: one entry of it is looked at, and nobody is blamed."""
    entries = [true_chain().ledger[round_] for round_ in range(10)]
    taking: TakingIn[Envelope] = TakingIn(identity(1).peer, entries, [], lambda word: word)
    return _take_in(taking, refuses=True) == 1 and taking.blame is None and not taking.all_held


def _take_in(taking: TakingIn[Any], *, refuses: bool = False) -> int:
    """How many inputs the member is handed."""
    count = 0
    while taking.next_input() is not None:
        count += 1
        if refuses:
            taking.refused()
    return count


def _all_are_recalled() -> bool:
    """One of three has nothing to say of us, one says it late, and one is cut short."""
    machine, peers = Recalling(3, _others(), 0.0), _others()
    machine.questions(peers[:2], 0.0)
    machine.answered(peers[0], Answer(3), 0.1)
    _hear(machine, all_held=True)
    first = machine.complete
    machine.questions(peers, 0.5)
    machine.answered(peers[1], Answer(3), 1.0)
    machine.answered(peers[2], Answer(3), 1.0)
    _hear(machine, all_held=False)
    return not first and not machine.complete


def _others() -> list[PeerId]:
    return [identity(number).peer for number in range(1, 4)]


def _hear(machine: Recalling, *, all_held: bool) -> None:
    for peer, _ in machine.drain():
        machine.heard(peer, all_held=all_held)


def _one_is_enough() -> list[Patch]:
    def complete(self: Any) -> bool:
        return len(self._missing) < 3

    return [(Recalling, "complete", property(complete))]


def _half_an_answer_will_do() -> list[Patch]:
    def heard(self: Any, peer: PeerId, *, all_held: bool) -> None:
        self._missing.discard(peer)

    return [(Recalling, "heard", heard)]


def _who_comes_late_is_asked() -> bool:
    machine, peers = Recalling(3, _others(), 0.0), _others()
    asked = [q.peer for now in (0.0, 1.0) for q in machine.questions(peers[: 1 + int(now)], now)]
    return asked == peers[:2] and machine.deadline(1.0) < 1.5


def _asks_only_once() -> list[Patch]:
    original = Recalling.questions

    def questions(self: Any, connected: Any, now: float) -> Any:
        asked = original(self, connected, now)
        self._unasked.clear()
        return asked

    return [(Recalling, "questions", questions)]


def _memory_is_not_waited_for_for_ever() -> bool:
    machine = Recalling(3, _others(), 0.0)
    machine.questions(_others(), 10.0)
    return machine.done


RULES = (
    Rule("a forged word ends an answer", _a_forged_word_ends_an_answer, _takes_the_next_one),
    Rule(
        "a refused entry ends an answer",
        _a_refused_entry_ends_an_answer,
        lambda: [(TakingIn, "refused", lambda self: None)],
    ),
    Rule("everybody's memory counts", _all_are_recalled, _one_is_enough),
    Rule("half an answer is no memory", _all_are_recalled, _half_an_answer_will_do),
    Rule("who connects late is asked as well", _who_comes_late_is_asked, _asks_only_once),
    Rule(
        "memories are not waited for for ever",
        _memory_is_not_waited_for_for_ever,
        put(vote_recovery, "RECALL_SECONDS", 1e9),
    ),
    Rule(
        "it is looked who has connected",
        _who_comes_late_is_asked,
        put(vote_recovery, "LOOK_SECONDS", 60.0),
    ),
)
