"""Rules of comparing chains: whom to ask for theirs, what that may cost, and when to give up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain import comparing, ledger
from distro_node.protocol.chain.comparing import Comparison, Rests
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.sync import Answer, Question, decode_request
from distro_node.protocol.wire.backoff import Backoff
from distro_node.protocol.wire.checkpoint import Checkpoint
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import Decided, RecordId

from ..chain import Answering, Chain, answers, compared, identity
from .chains import carried_on, compared_with, forged_chain, sides, solo_chain, true_chain
from .rule import Patch, Rule, edited, put

# Private here: `_follow`: the very lines that are broken on purpose; `_backwards`, `_between`: what they
# ask for in chains that are too long to be made.


def _a_shorter_chain_is_found() -> bool:
    better = compared_with(
        solo_chain(200).ledger, {identity(0).peer: answers(sides(0, 1, 2).ledger)}
    )[1]
    return better is not None


def _steps_back_a_little() -> list[Patch]:
    def backwards(height: int, floor: int) -> tuple[int, ...]:
        return tuple(range(max(floor, height - 8), height))

    ours = len(solo_chain(200).ledger)
    again = backwards(ours, 0)
    return [
        (comparing, "_backwards", backwards),
        (comparing, "_between", lambda same, other: again),
    ]


def _nothing_before_the_floor_is_asked_for() -> bool:
    ours = true_chain().fork().ledger
    asked, better = compared_with(ours, {identity(1).peer: answers(forged_chain().ledger)})
    lowest = min((probe for question in asked for probe in question.probes), default=0)
    return better is None and lowest >= ours.final_round and not any(q.most for q in asked)


def _no_floor() -> list[Patch]:
    return [(ledger.Ledger, "floor", property(lambda self: 0))]


def _one_peers_rounds_are_bounded() -> bool:
    """A chain of 400 rounds, of which no more than 100 are looked at."""
    ours = sides(0, 1, 2, rounds=1).ledger
    with patch.object(comparing, "COMPARED_ROUNDS", 100):
        asked, _ = compared_with(ours, {identity(3).peer: answers(solo_chain().ledger)})
    return sum(question.most for question in asked) <= 3 * comparing._PORTION


def _one_peers_bytes_are_bounded() -> bool:
    ours = sides(0, 1, 2, rounds=1).ledger
    honest = answers(solo_chain().ledger)

    def long(question: Question) -> Answer | None:
        answer = honest(question)
        return None if answer is None else dataclasses.replace(answer, size=16 << 20)

    asked, _ = compared_with(ours, {identity(3).peer: long})
    return sum(question.most > 0 for question in asked) == 1


def _no_end() -> list[Patch]:
    original = comparing._Walk._follow

    def follow(self: Any, answer: Answer) -> bool:
        self._bytes = -(1 << 60)
        with patch.object(comparing, "COMPARED_ROUNDS", 1 << 60):
            return original(self, answer)

    return [(comparing._Walk, "_follow", follow)]


def _so_many_are_asked() -> bool:
    ours = sides(0, 1, 2, rounds=1).ledger
    strangers = {
        identity(200 + number).peer: answers(solo_chain(60).ledger) for number in range(40)
    }
    asked, _ = compared_with(ours, strangers)
    return len({question.peer for question in asked}) <= 4


def _all_are_asked() -> list[Patch]:
    return [(comparing, "_MOST_STRANGERS", 100), (comparing, "_MOST_PEERS", 100)]


def _who_was_asked_in_vain_rests() -> bool:
    ours, rests = sides(0, 1, 2, rounds=1).ledger, Rests()
    peers = {identity(3).peer: answers(solo_chain(60).ledger)}
    first, _ = compared_with(ours, peers, rests)
    again, _ = compared_with(ours, peers, rests, now=5.0)
    later, _ = compared_with(ours, peers, rests, now=500.0)
    moved = [any(question.most for question in asked) for asked in (first, again, later)]
    return moved == [True, False, True]


def _nobody_rests() -> list[Patch]:
    return [(Backoff, "rests", lambda self, peer, now: False)]


FAKE = RecordId(content_id(b"no record"))


def _members_are_not_crowded_out() -> bool:
    """By names that cost nothing, twenty of which come first."""
    peers: dict[PeerId, Answering] = {
        identity(200 + number).peer: lambda question: None for number in range(20)
    }
    peers[identity(1).peer] = answers(sides(0, 1, 2).ledger)
    return compared_with(solo_chain(40).ledger, peers)[1] is not None


def _silent_members(count: int) -> tuple[Ledger, dict[PeerId, Answering]]:
    chain = Chain(count).grow_until(2)
    return chain.ledger, {peer: lambda question: None for peer in chain.membership.peers}


def _so_many_members_are_asked() -> bool:
    asked, _ = compared_with(*_silent_members(20))
    return len({question.peer for question in asked}) <= 12


def _so_many_are_asked_at_a_time() -> bool:
    ours, peers = _silent_members(12)
    machine = Comparison(ours, peers, Rests(), me=identity(0).peer, abandoned=False)
    return len(machine.questions(0.0)) <= 4


def _a_search_ends() -> bool:
    """Whose height goes up and down leads us through all of our chain."""
    ours, turn = solo_chain().fork().ledger, 0

    def winding(question: Question) -> Answer:
        nonlocal turn
        turn += 1
        true = [ours.parent(probe + 1) for probe in question.probes]
        if turn == 1:
            return Answer(len(ours), (true[0], *[FAKE] * len(true[1:])))
        return Answer(question.probes[0]) if turn % 2 == 0 else Answer(len(ours), tuple(true))

    asked, _ = compared_with(ours, {identity(3).peer: winding})
    return len(asked) <= 6


def _questions_are_such_as_are_answered() -> bool:
    """However long the chains are."""
    for probes in (comparing._backwards(1 << 40, 0), comparing._between(0, 1 << 20)):
        question = Question(identity(1).peer, 0, probes=probes, most=0)
        decode_request(encode(question.request(bytes(32))))
    return True


def _who_parts_before_the_floor_is_asked_once() -> bool:
    asked, _ = compared_with(
        true_chain().ledger, {identity(1).peer: answers(forged_chain().ledger)}
    )
    return len(asked) == 1


def _a_strangers_word_is_not_taken_down() -> bool:
    ours, stranger = true_chain().ledger, identity(40).peer
    ours.binding = True
    machine = Comparison(ours, [stranger], Rests(), me=identity(0).peer, abandoned=False)
    (question,) = machine.questions(0.0)
    machine.answered(stranger, answers(forged_chain().ledger)(question), 0.0)
    return machine.done and machine.named == {}


def _is_blamed(ours: Chain, liar: Answering) -> bool:
    try:
        compared(ours.ledger, liar)
    except ProtocolError as error:
        return error.reason == "invalid"
    return False


def _our_own_records_are_no_other_chain() -> bool:
    """Other ids, and then the entries that we have."""
    ours = sides(0, 1, 2)
    honest = answers(ours.ledger)

    def liar(question: Question) -> Answer | None:
        answer = honest(question)
        assert answer is not None
        known = ours.ledger.floor - 1
        ids = zip(question.probes, answer.ids, strict=True)
        return dataclasses.replace(
            answer, ids=tuple(true if probe == known else FAKE for probe, true in ids)
        )

    return _is_blamed(ours, liar)


def _a_height_needs_its_rounds() -> bool:
    """A few entries, and then none, again and again."""
    honest, given = answers(solo_chain().ledger), 0

    def liar(question: Question) -> Answer | None:
        nonlocal given
        answer = honest(question)
        assert answer is not None
        if question.most:
            given += 1
            assert given < 10
            answer = dataclasses.replace(answer, at_hand=answer.at_hand[: 3 if given == 1 else 0])
        return answer

    return _is_blamed(sides(0, 1, 2, rounds=1), liar)


class _Read(list[Decided]):
    """Entries that count how many of them are read."""

    read = 0

    def __iter__(self) -> Iterator[Decided]:
        for entry in super().__iter__():
            self.read += 1
            yield entry


def _an_answer_is_read_as_far_as_it_was_asked_for() -> bool:
    """All entries where 64 were wanted: each costs several checks of signatures."""
    chain, given = solo_chain().ledger, []

    def long(question: Question) -> Answer | None:
        if question.most == 0:
            return answers(chain)(question)
        given.append(_Read(chain[round_] for round_ in range(question.round, len(chain))))
        return Answer(len(chain), at_hand=given[-1])

    with patch.object(comparing, "COMPARED_ROUNDS", 100):
        compared(sides(0, 1, 2, rounds=1).ledger, long)
    return bool(given) and all(entries.read <= 64 for entries in given)


def _up_to_a_checkpoint_all_is_fetched() -> bool:
    """Nobody can tell before whose chain it is: ours was forged."""
    true = solo_chain()
    at = Checkpoint(60, true.ledger.parent(61))
    ours = Ledger(true.manifest, checkpoint=at)
    for round_ in range(len(forged_chain().ledger)):
        ours.append(forged_chain().ledger[round_])
    small = patch.object(comparing, "COMPARED_ROUNDS", 20), patch.object(comparing, "_PORTION", 10)
    with small[0], small[1]:
        _, better = compared_with(ours, {identity(3).peer: answers(true.ledger)})
    return better is not None and better.anchored


def _what_is_decided_is_fetched_no_further() -> bool:
    with patch.object(comparing, "_PORTION", 2):
        asked, better = compared_with(
            solo_chain(40).ledger, {identity(0).peer: answers(sides(0, 1, 2).ledger)}
        )
    return better is not None and sum(question.most > 0 for question in asked) == 1


def _who_lies_rests() -> bool:
    honest, liar = answers(solo_chain(60).ledger), answers(true_chain().ledger)

    def two_faced(question: Question) -> Answer | None:
        return liar(dataclasses.replace(question, round=3)) if question.most else honest(question)

    ours, rests = sides(0, 1, 2, rounds=1).ledger, Rests()
    peers = {identity(3).peer: two_faced}
    looks = [compared_with(ours, peers, rests, now=now)[0] for now in (0.0, 5.0)]
    return [any(question.most for question in asked) for asked in looks] == [True, False]


def _nobody_rests_for_ever() -> bool:
    """Who is of no use today may be tomorrow."""
    peer, rests = identity(3).peer, Rests()
    for _ in range(20):
        rests.failed(peer, 0.0)
    return rests.rests(peer, 159.0) and not rests.rests(peer, 161.0)


# What came meanwhile


def _found(ours: Chain, theirs: Chain) -> Comparison:
    """A look at theirs that has come to an end, at a copy of ours."""
    ours.ledger.binding = True
    me, peer = ours.membership.peers[0], ours.manifest.founder
    seen = ours.ledger.truncated(ours.round)
    machine = Comparison(seen, [peer], Rests(), me=me, abandoned=False)
    while not machine.done:
        for question in machine.questions(0.0):
            machine.answered(peer, answers(theirs.ledger)(question), 0.0)
    assert machine.better_than(ours.ledger) is machine.better is not None
    return machine


def _parted(theirs: int, rounds: int) -> tuple[Chain, Comparison]:
    """So many of five have gone on with another chain, which was found to be better."""
    chain = Chain(5).grow_until(3)
    peers = chain.membership.peers
    ours = carried_on(chain, peers[: 5 - theirs])
    return ours, _found(ours, carried_on(chain, peers[5 - theirs :], rounds))


def _together_again(ours: Chain, rounds: int) -> None:
    """The others come to our chain while we look."""
    away = [who for who in range(5) if identity(who).peer not in ours.membership]
    ours.grow(admitted=[ours.admission(who) for who in away])
    ours.grow_until(ours.round + rounds)


def _what_became_final_meanwhile_stays() -> bool:
    """Though there is a final record on the other chain as well."""
    ours, machine = _parted(4, 4)
    _together_again(ours, 4)
    assert ours.ledger.final_round >= 3
    return machine.better_than(ours.ledger) is None


def _what_became_justified_meanwhile_stays() -> bool:
    ours, machine = _parted(3, 3)
    _together_again(ours, 1)
    assert ours.ledger.final_round < 3 <= ours.ledger.justified_round
    return machine.better_than(ours.ledger) is None


def _but_for_what_is_final() -> bool:
    ours, machine = _parted(4, 4)
    _together_again(ours, 1)
    assert ours.ledger.final_round < 3 <= ours.ledger.justified_round
    return machine.better_than(ours.ledger) is machine.better


def _follow(*changes: tuple[str, str]) -> Callable[[], list[Patch]]:
    return edited(comparing._Walk, "_follow", *changes)


def _better_than(*changes: tuple[str, str]) -> Callable[[], list[Patch]]:
    return edited(Comparison, "better_than", *changes)


_REST = "        self._rests.failed(peer, now)\n        return Blame"

RULES = (
    Rule("a shorter chain is found", _a_shorter_chain_is_found, _steps_back_a_little),
    Rule(
        "nothing before the floor is asked for", _nothing_before_the_floor_is_asked_for, _no_floor
    ),
    Rule("one peer's rounds are bounded", _one_peers_rounds_are_bounded, _no_end),
    Rule(
        "one peer's bytes are bounded",
        _one_peers_bytes_are_bounded,
        put(comparing, "_MOST_BYTES", 1 << 60),
    ),
    Rule("so many peers are asked", _so_many_are_asked, _all_are_asked),
    Rule("who was asked in vain rests", _who_was_asked_in_vain_rests, _nobody_rests),
    Rule(
        "members are not crowded out",
        _members_are_not_crowded_out,
        edited(
            Comparison,
            "__init__",
            ("chosen = [*known, *strangers[:_MOST_STRANGERS]]", "chosen = peers"),
        ),
    ),
    Rule(
        "so many members are asked", _so_many_members_are_asked, put(comparing, "_MOST_PEERS", 100)
    ),
    Rule(
        "so many are asked at a time", _so_many_are_asked_at_a_time, put(comparing, "AT_ONCE", 100)
    ),
    Rule("a search for the fork ends", _a_search_ends, put(comparing, "_MOST_PROBES", 1000)),
    Rule(
        "questions are such as are answered",
        _questions_are_such_as_are_answered,
        put(comparing, "MAX_PROBES", 100),
    ),
    Rule(
        "who parts before the floor is asked once",
        _who_parts_before_the_floor_is_asked_once,
        edited(comparing._Walk, "_search", ("if self.elsewhere:", "if False:")),
    ),
    Rule(
        "a stranger's word is not taken down",
        _a_strangers_word_is_not_taken_down,
        edited(Comparison, "answered", (" and self._ours.has_been_member(peer)", "")),
    ),
    Rule(
        "our own records are no other chain",
        _our_own_records_are_no_other_chain,
        _follow(("decided.record.id == self._ours.parent(fork + 1)", "False")),
    ),
    Rule(
        "a height needs its rounds",
        _a_height_needs_its_rounds,
        _follow(("len(chain) == before and answer.height > before", "False")),
    ),
    Rule(
        "an answer is read as far as it was asked for",
        _an_answer_is_read_as_far_as_it_was_asked_for,
        _follow(("itertools.islice(answer.entries(), _PORTION)", "answer.entries()")),
    ),
    Rule(
        "up to a checkpoint all is fetched",
        _up_to_a_checkpoint_all_is_fetched,
        _follow(("(spent and chain.anchored)", "spent")),
    ),
    Rule(
        "what is decided is fetched no further",
        _what_is_decided_is_fetched_no_further,
        _follow(("if decided_early(", "if None is decided_early(")),
    ),
    Rule(
        "who lies rests",
        _who_lies_rests,
        edited(Comparison, "answered", (_REST, "        return Blame")),
    ),
    Rule(
        "nobody rests for ever",
        _nobody_rests_for_ever,
        put(comparing, "_LONGEST_REST_SECONDS", 1e9),
    ),
    Rule(
        "what became final meanwhile stays",
        _what_became_final_meanwhile_stays,
        _better_than((" or fork < ours.floor", "")),
    ),
    Rule(
        "what became justified meanwhile stays",
        _what_became_justified_meanwhile_stays,
        _better_than(("ours.justified_round >= fork > better.final_round", "False")),
    ),
    Rule(
        "but for what is final", _but_for_what_is_final, _better_than((" > better.final_round", ""))
    ),
    Rule(
        "portions are small",
        _an_answer_is_read_as_far_as_it_was_asked_for,
        put(comparing, "_PORTION", 1 << 40),
    ),
    Rule(
        "a rest lasts",
        _who_was_asked_in_vain_rests,
        put(comparing, "_FIRST_REST_SECONDS", 0.0),
    ),
)
