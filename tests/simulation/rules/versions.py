"""Rules of the change to a newer version: who brings it about, and when those go who do not speak it."""

from __future__ import annotations

from distro_node.protocol.chain import catching_up, versions
from distro_node.protocol.chain.catching_up import CatchingUp
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.wire.manifest import PROTOCOL_VERSION

from ..chain import Chain, answers
from .rule import Rule, edited, put

_NEXT = PROTOCOL_VERSION + 1
_NOTICE = 12
_READY = 16


def _chain(said: list[int], speakers: int = 3, speaks: int = _NEXT) -> Chain:
    """Of four members, of which so many say in rounds with a 1 that they speak the next version, and
    nobody has an update in those with a -1."""
    chain = Chain(4, version_notice=_NOTICE)
    chain.ledger.versions.speaks = speaks
    for each in said:
        peers = chain.membership.peers
        newer = peers[:speakers] if each == 1 else ()
        chain.grow(
            updates=[
                chain.update(peer, speaks=_NEXT if peer in newer else PROTOCOL_VERSION)
                for peer in (peers if each >= 0 else ())
            ]
        )
    return chain


def _a_quorum_brings_it_about() -> bool:
    few, enough = _chain([1] * 20, speakers=2), _chain([1] * 20)
    return few.ledger.versions.change is None and enough.ledger.versions.change is not None


def _it_has_spoken_for_a_while() -> bool:
    return _chain([1] * 5).ledger.versions.change is None


def _what_was_said_is_good_for_a_while() -> bool:
    return _chain([1, *([-1] * 18)]).ledger.versions.change is not None


def _what_was_said_is_not_good_for_ever() -> bool:
    chain = Chain(4, version_notice=1000)
    chain.ledger.versions.speaks = _NEXT
    peers = chain.membership.peers
    for round_ in range(90):
        speakers = peers[:3] if round_ == 0 else peers[1:3]
        # One of the three has said it once, and nothing since.
        chain.grow(updates=[chain.update(peer, speaks=_NEXT) for peer in speakers])
    # It counted long enough for the change to be scheduled, and no longer.
    return not chain.ledger.versions._spoken.is_quorum(
        _NEXT, chain.membership.one_each, "byzantine"
    )


def _who_does_not_speak_it_takes_leave_in_time() -> bool:
    chain = _chain([1] * (_READY + _NOTICE - 4), speaks=PROTOCOL_VERSION)
    far, near = (
        chain.ledger.versions.soon_outdated,
        _chain([1] * (_READY + _NOTICE - 3), speaks=PROTOCOL_VERSION),
    )
    return not far and near.ledger.versions.soon_outdated


def _what_is_spoken_no_more_is_called_off() -> bool:
    chain = _chain([1] * (_READY + _NOTICE - 1) + [0])
    return chain.ledger.versions[chain.round].now == PROTOCOL_VERSION


def _nobody_follows_what_it_cannot_read() -> bool:
    chain = _chain([1] * (_READY + _NOTICE + 5))
    ours, answer = Ledger(chain.manifest), answers(chain.ledger)
    machine, blamed = CatchingUp(ours), []
    for _ in range(100):
        for question in machine.questions(chain.membership.peers, 0.0):
            blamed.append(machine.answered(question.peer, answer(question), 0.0))
    return machine.done and not any(blamed) and ours.versions.outdated


# Private here: `_spoken`: whose word counts is told by its consequence alone, long after.

RULES = (
    Rule(
        "a quorum brings a version about",
        _a_quorum_brings_it_about,
        put(versions, "quorum", lambda model, votes: 2),
    ),
    Rule(
        "a version is spoken for a while",
        _it_has_spoken_for_a_while,
        put(versions, "READY_ROUNDS", 1),
    ),
    Rule(
        "what one speaks is good for a while",
        _what_was_said_is_good_for_a_while,
        put(versions, "SPOKEN_ROUNDS", 2),
    ),
    Rule(
        "what one speaks is not good for ever",
        _what_was_said_is_not_good_for_ever,
        put(versions, "SPOKEN_ROUNDS", 1 << 30),
    ),
    Rule(
        "who does not speak it takes leave in time",
        _who_does_not_speak_it_takes_leave_in_time,
        put(versions, "GOODBYE_ROUNDS", 0),
    ),
    Rule(
        "what is spoken no more is called off",
        _what_is_spoken_no_more_is_called_off,
        edited(
            versions, "next_versions", ("change.version if ready else before.now", "change.version")
        ),
    ),
    Rule(
        "nobody follows what it cannot read",
        _nobody_follows_what_it_cannot_read,
        edited(
            catching_up.CatchingUp,
            "_append",
            (
                "len(self._ledger) >= self._goal or self._ledger.versions.outdated",
                "len(self._ledger) >= self._goal",
            ),
        ),
    ),
)
