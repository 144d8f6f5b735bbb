"""Rules of asking what was missed: nobody's answer is waited for alone, nor for ever."""

from __future__ import annotations

from distro_node.protocol.chain import asking
from distro_node.protocol.chain.asking import Asking
from distro_node.protocol.chain.sync import Answer

from ..chain import identity
from .rule import Rule, edited, put

SIX = [identity(number).peer for number in range(6)]


def _nobody_is_waited_for_alone() -> bool:
    slow, other = identity(1).peer, identity(2).peer
    asking_ = Asking([slow, other], {slow}, 3)
    first = asking_.questions(0.0)
    after = asking_.deadline(0.0)
    second = asking_.questions(after)
    return after < 10.0 and [q.peer for q in (*first, *second)] == [slow, other]


def _few_are_asked_at_a_time() -> bool:
    """Of six who all dawdle."""
    machine = Asking(SIX, set(), 3)
    return sum(len(machine.questions(float(now))) for now in range(50)) == 3


def _who_never_answers_is_given_up() -> bool:
    machine, now = Asking(SIX, set(), 3), 0.0
    while not machine.done and now < 1000.0:
        machine.questions(now)
        now += 1.0
    # Two waves of three.
    return machine.done and now < 140.0


def _members_come_first() -> bool:
    (question,) = Asking(SIX, {SIX[4]}, 3).questions(0.0)
    return question.peer == SIX[4]


def _the_first_answer_counts() -> bool:
    """What comes later may hold anything, and would be taken in as well."""
    machine = Asking(SIX, set(), 3)
    machine.questions(0.0)
    machine.questions(5.0)
    machine.answered(SIX[1], Answer(9), 6.0)
    machine.answered(SIX[0], Answer(1000), 7.0)
    return machine.done and machine.found == (SIX[1], Answer(9))


def _nobody_unasked_answers() -> bool:
    machine = Asking(SIX, set(), 3)
    machine.questions(0.0)
    machine.answered(SIX[5], Answer(9), 0.1)
    return machine.found is None


RULES = (
    Rule(
        "nobody is waited for alone",
        _nobody_is_waited_for_alone,
        lambda: [(asking, "DAWDLE_SECONDS", 60.0)],
    ),
    Rule("few are asked at a time", _few_are_asked_at_a_time, put(asking, "AT_ONCE", 100)),
    Rule(
        "who never answers is given up",
        _who_never_answers_is_given_up,
        put(asking, "PATIENCE_SECONDS", 1e9),
    ),
    Rule(
        "members come first",
        _members_come_first,
        edited(
            Asking,
            "__init__",
            ("sorted(peers, key=lambda peer: peer not in members)", "list(peers)"),
        ),
    ),
    Rule(
        "the first answer counts",
        _the_first_answer_counts,
        edited(Asking, "answered", (" and self.found is None", "")),
    ),
    Rule(
        "nobody unasked answers",
        _nobody_unasked_answers,
        edited(Asking, "answered", ("asked is not None and ", "")),
    ),
)
