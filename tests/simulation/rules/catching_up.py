"""Rules of catching up: whom to ask, how far to go on whose word, and what an answer must hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain import catching_up, comparing
from distro_node.protocol.chain.catching_up import CatchingUp
from distro_node.protocol.chain.comparing import Blame
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.sync import Answer, Question
from distro_node.protocol.wire.messages import Certificate, Decided, SignedBallot

from ..chain import Answering, answers, identity
from .chains import (
    carried_on,
    caught_up,
    checkpoint,
    checkpoint_is_nobodys_business,
    compared_with,
    forged_chain,
    lower,
    solo_chain,
    true_chain,
)
from .rule import Patch, Rule, edited, put

# Private here: `_choose_goal`: the very lines that are broken on purpose.


def _checkpoint_is_asked_for() -> bool:
    chain = Ledger(true_chain().manifest, checkpoint=checkpoint())
    liars = [answers(forged_chain().ledger)] * 4
    asked, _ = caught_up(chain, [*liars, answers(true_chain().ledger)])
    # An id of each liar, and nothing more.
    return chain.head == true_chain().ledger.head and asked <= 5 + 4


def _wrong_entries_are_given_up() -> bool:
    honest, liar = answers(true_chain().ledger), answers(forged_chain().ledger)

    def two_faced(question: Question) -> Answer | None:
        return honest(question) if question.most == 0 else liar(question)

    chain = Ledger(true_chain().manifest, checkpoint=checkpoint())
    caught_up(chain, [two_faced, two_faced, honest])
    return chain.head == true_chain().ledger.head


def _keeps_wrong_entries() -> list[Patch]:
    return [(CatchingUp, "_rewind", lambda self: None)]


def _who_does_not_answer_is_given_up() -> bool:
    peers: dict[PeerId, Answering] = {identity(3).peer: lambda question: None}
    compared_with(true_chain().fork().ledger, peers)
    caught_up(Ledger(true_chain().manifest), [lambda question: None, answers(true_chain().ledger)])
    return True


def _waits_for_ever() -> list[Patch]:
    return [(module, "PATIENCE_SECONDS", 1e9) for module in (comparing, catching_up)]


def _the_goal_is_what_most_name() -> bool:
    """One liar of four goes on alone for 400 rounds."""
    chain = Ledger(true_chain().manifest)
    _, rounds = caught_up(
        chain, [answers(true_chain().ledger)] * 3 + [answers(solo_chain().ledger)]
    )
    return rounds == len(true_chain().ledger)


def _the_greatest_height() -> list[Patch]:
    def choose(self: Any) -> None:
        self._goal = max(offer.height for offer in self._offers.values())
        self._asked.clear()

    return [(CatchingUp, "_choose_goal", choose)]


def _any_head_will_do() -> list[Patch]:
    return [(catching_up, "most_liars", lambda model, members: 0)]


def _records_are_what_most_name() -> bool:
    """Of four as high as each other one has another record there."""
    one = true_chain(11).fork()
    one.grow(fingerprint=666, updates=[])
    chain = Ledger(true_chain().manifest)
    caught_up(chain, [answers(one.ledger)] + [answers(true_chain().ledger)] * 3)
    return chain.head == true_chain().ledger.head


def _the_first_is_believed() -> list[Patch]:
    class First(dict):  # type: ignore[type-arg]  # counts each as one
        def __init__(self, items: Any) -> None:
            super().__init__(dict.fromkeys(items, 1))

    def lowest(first: Any, *items: Any, **options: Any) -> Any:
        return min(first, *items, **options) if options or items else next(iter(first))

    return [(catching_up, "Counter", First), (catching_up, "min", lowest)]


def _the_goal_is_bounded() -> bool:
    chain = Ledger(true_chain().manifest)
    with patch.object(catching_up, "_MOST_ROUNDS", 50):
        _, rounds = caught_up(chain, [answers(solo_chain().ledger)] * 3)
    return rounds == 50


def _no_most_rounds() -> list[Patch]:
    original = CatchingUp._choose_goal

    def choose(self: Any) -> None:
        with patch.object(catching_up, "_MOST_ROUNDS", 1 << 40):
            original(self)

    return [(CatchingUp, "_choose_goal", choose)]


def _enough_are_asked() -> bool:
    asked, _ = caught_up(
        Ledger(true_chain().manifest), [answers(true_chain().ledger)] * 30, most=1000
    )
    return asked <= 2 * 5 + 2


def _members_are_asked_first() -> bool:
    """Twenty names of one who goes on alone, and three members that were there before."""
    chain = true_chain(8).ledger.truncated(8)
    machine = CatchingUp(chain)
    honest, alone = answers(true_chain().ledger), answers(solo_chain().ledger)
    members = {identity(who).peer for who in range(3)}
    names = [*(identity(200 + number).peer for number in range(20)), *members]
    while not machine.done:
        for question in machine.questions(names, 0.0):
            answer = (honest if question.peer in members else alone)(question)
            machine.answered(question.peer, answer, 0.0)
    return len(chain) == len(true_chain().ledger)


def _nobody_is_known() -> list[Patch]:
    return [(CatchingUp, "_is_known", lambda self, peer: False)]


def _who_is_slow_is_not_waited_for() -> bool:
    """An answer is there, and another peer takes its time."""
    machine, names = CatchingUp(Ledger(true_chain().manifest)), [identity(n).peer for n in (1, 2)]
    _, question = machine.questions(names, 0.0)
    machine.answered(question.peer, answers(true_chain().ledger)(question), 0.0)
    now = 0.0
    while not machine.questions(names, now):
        now = machine.deadline(now + 0.1)
    return now < 4.0


# The last certificate of a chain that goes further


FAR = 40
"""How high a liar says that it is."""


def _behind(liar: Callable[[], Decided | None], blamed: list[Blame] | None = None) -> bool:
    """Two are a round behind, one liar says that it is far ahead and shows this last entry, and one is
    at the end. Whether the end is reached, with an honest number of questions."""
    true = true_chain().ledger
    honest, late = answers(true), answers(true.truncated(len(true) - 1))

    def lying(question: Question) -> Answer | None:
        if question.most == 1 and question.round == FAR - 1:
            head = liar()
            return Answer(FAR, at_hand=[] if head is None else [head])
        answer = late(question)
        return None if answer is None else dataclasses.replace(answer, height=FAR)

    chain = Ledger(true_chain().manifest)
    caught_up(chain, [late, late, lying, honest], most=20, blamed=blamed)
    return chain.head == true.head


def _invented(signers: list[int] | None = None) -> Decided:
    """An entry of that height by these; by all members without signatures that hold if by none."""
    chain = true_chain()
    record = dataclasses.replace(chain.ledger[5].record, round=FAR - 1)
    if signers is not None:
        peers = [identity(who).peer for who in signers]
        made = chain.certificate(record.id, signers=peers, round=FAR - 1)
        return Decided(record, made)
    ballots = tuple(SignedBallot(peer, b"\0", bytes(64)) for peer in chain.membership.peers)
    return Decided(record, Certificate("finalize", FAR - 1, record.parent, 1, record.id, ballots))


def _a_head_is_of_the_round_that_was_asked_for() -> bool:
    return _behind(lambda: true_chain().ledger[10])


def _a_heads_certificate_is_its_own() -> bool:
    entry = true_chain().ledger[10]
    return _behind(
        lambda: Decided(dataclasses.replace(entry.record, round=FAR - 1), entry.certificate)
    )


def _a_heads_signatures_hold() -> bool:
    return _behind(_invented)


def _a_heads_signers_are_members() -> bool:
    return _behind(lambda: _invented([50, 51, 52, 53]))


def _a_height_without_a_head_is_a_lie() -> bool:
    blamed: list[Blame] = []
    return _behind(lambda: None, blamed) and blamed[0].text.startswith("a height without")


def _heads_are_bounded() -> bool:
    """As the goal is."""
    far, near = answers(true_chain(30).ledger), answers(true_chain().ledger)
    with patch.object(catching_up, "_MOST_ROUNDS", 20):
        _, rounds = caught_up(Ledger(true_chain().manifest), [far, near, near, near])
    return rounds == 20


# On the way


def _a_height_needs_its_rounds() -> bool:
    """The first one names what all name, and has no entries."""
    honest = answers(true_chain().ledger)

    def empty(question: Question) -> Answer | None:
        answer = honest(question)
        return None if answer is None else dataclasses.replace(answer, at_hand=[])

    _, rounds = caught_up(Ledger(true_chain().manifest), [empty, honest, honest])
    return rounds == len(true_chain().ledger)


def _few_strangers_are_asked_beside_members() -> bool:
    """Twenty names of one who goes on alone, and two members: with a third name it would prevail."""
    machine = CatchingUp(true_chain().ledger.truncated(8))
    honest, alone = answers(true_chain().ledger), answers(solo_chain().ledger)
    members = [identity(who).peer for who in range(2)]
    names = [*(identity(200 + number).peer for number in range(20)), *members]
    while not machine.done:
        for question in machine.questions(names, 0.0):
            answer = (honest if question.peer in members else alone)(question)
            machine.answered(question.peer, answer, 0.0)
    return machine.height == len(true_chain().ledger)


def _members_decide_between_two_records() -> bool:
    """Two strangers name one, of a lower hash, and two members another."""
    true = true_chain().ledger
    peers = true_chain().membership.peers
    other = lower(true_chain(), 11, lambda n: carried_on(true_chain(11), peers, 1, variant=n))
    chain, members = true.truncated(11), [identity(who).peer for who in range(2)]
    machine, names = CatchingUp(chain), [*(identity(200 + n).peer for n in range(2)), *members]
    while not machine.done:
        for question in machine.questions(names, 0.0):
            honest = question.peer in members
            answer = answers(true if honest else other.ledger)(question)
            machine.answered(question.peer, answer, 0.0)
    return chain.head == true.head


def _so_many_entries_are_asked_for() -> bool:
    honest, wanted = answers(true_chain().ledger), []

    def noting(question: Question) -> Answer | None:
        wanted.append(question.most)
        return honest(question)

    with patch.object(catching_up, "_PORTION", 5):
        caught_up(Ledger(true_chain().manifest), [noting] * 3)
    return max(wanted) == 5


# A checkpoint


def _who_breaks_off_makes_no_others_wrong() -> bool:
    """A few forged entries, and then silence: what the honest one gives does not follow them."""
    honest, forged = answers(true_chain().ledger), answers(forged_chain().ledger.truncated(5))

    def breaks_off(question: Question) -> Answer | None:
        if question.most == 0:
            return honest(question)
        return forged(question) if question.round == 0 else None

    chain = Ledger(true_chain().manifest, checkpoint=checkpoint())
    caught_up(chain, [breaks_off, honest])
    return chain.head == true_chain().ledger.head


def _an_own_chain_that_is_not_the_checkpoints_is_given_up() -> bool:
    chain = Ledger(true_chain().manifest, checkpoint=checkpoint())
    for round_ in range(6):
        chain.append(forged_chain().ledger[round_])
    caught_up(chain, [answers(true_chain().ledger)] * 3)
    return chain.head == true_chain().ledger.head


def _who_is_behind_the_checkpoint_is_of_no_use() -> bool:
    chain = Ledger(true_chain().manifest, checkpoint=checkpoint())
    behind: Answering = answers(true_chain().ledger.truncated(8))
    return caught_up(chain, [behind] * 3)[1] == 0


def _judges(*changes: tuple[str, str]) -> Callable[[], list[Patch]]:
    return edited(CatchingUp, "_judge_head", *changes)


RULES = (
    Rule(
        "a checkpoint's id is asked for", _checkpoint_is_asked_for, checkpoint_is_nobodys_business
    ),
    Rule("wrong entries are given up", _wrong_entries_are_given_up, _keeps_wrong_entries),
    Rule("who does not answer is given up", _who_does_not_answer_is_given_up, _waits_for_ever),
    Rule("the goal is what most name", _the_goal_is_what_most_name, _the_greatest_height),
    Rule("a head needs somebody honest", _the_goal_is_what_most_name, _any_head_will_do),
    Rule("records are what most name", _records_are_what_most_name, _the_first_is_believed),
    Rule("the goal is bounded", _the_goal_is_bounded, _no_most_rounds),
    Rule("enough are asked", _enough_are_asked, lambda: [(catching_up, "ENOUGH", 30)]),
    Rule("members are asked first", _members_are_asked_first, _nobody_is_known),
    Rule(
        "who is slow is not waited for",
        _who_is_slow_is_not_waited_for,
        put(catching_up, "DAWDLE_SECONDS", 60.0),
    ),
    Rule(
        "a head is of the round that was asked for",
        _a_head_is_of_the_round_that_was_asked_for,
        _judges(("head.record.round != question.round or ", "")),
    ),
    Rule(
        "a head's certificate is its own",
        _a_heads_certificate_is_its_own,
        _judges((" or head.certificate.block != head.record.id", "")),
    ),
    Rule(
        "a head's signatures hold",
        _a_heads_signatures_hold,
        _judges(
            (
                "check_signatures(head.certificate, self._ledger.swarm, self._ledger.verify)",
                "{signed.peer for signed in head.certificate.ballots}",
            )
        ),
    ),
    Rule(
        "a head's signers are members",
        _a_heads_signers_are_members,
        _judges(("votes.among(signers)", "len(signers)")),
    ),
    Rule(
        "a height without a head is a lie",
        _a_height_without_a_head_is_a_lie,
        _judges(
            ('raise ProtocolError("invalid", "a height without the rounds that make it")', "return")
        ),
    ),
    Rule(
        "a head is asked for once",
        _a_heads_signers_are_members,
        edited(CatchingUp, "_further", ("and peer not in self._heads", "")),
    ),
    Rule(
        "heads are bounded",
        _heads_are_bounded,
        edited(
            CatchingUp,
            "_further",
            (
                "min(self._offers[peer].height, self._began + _MOST_ROUNDS)",
                "self._offers[peer].height",
            ),
        ),
    ),
    Rule(
        "who has no rounds is given up",
        _a_height_needs_its_rounds,
        edited(CatchingUp, "_append", ("if len(self._ledger) == before", "if False")),
    ),
    Rule(
        "few strangers are asked beside members",
        _few_strangers_are_asked_beside_members,
        put(catching_up, "_MOST_STRANGERS", 30),
    ),
    Rule(
        "members decide between two records",
        _members_decide_between_two_records,
        edited(CatchingUp, "_on_the_way", ("-by_known[goal], ", "")),
    ),
    Rule(
        "so many entries are asked for",
        _so_many_entries_are_asked_for,
        edited(CatchingUp, "_on_the_way", ("min(_PORTION, missing)", "missing")),
    ),
    Rule(
        "who breaks off makes no others wrong",
        _who_breaks_off_makes_no_others_wrong,
        edited(CatchingUp, "_refused", ("others if other_chain and others else {peer}", "{peer}")),
    ),
    Rule(
        "an own chain that is not the checkpoint's is given up",
        _an_own_chain_that_is_not_the_checkpoints_is_given_up,
        edited(CatchingUp, "_take_offer", ("self._rewind()", "")),
    ),
    Rule(
        "who is behind the checkpoint is of no use",
        _who_is_behind_the_checkpoint_is_of_no_use,
        edited(CatchingUp, "_take_offer", ("at.round not in ids", "False")),
    ),
)
