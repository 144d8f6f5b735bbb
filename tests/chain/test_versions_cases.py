"""Rules of the change to a newer version: what causes it, and when members without support leave."""

from __future__ import annotations

from distro_node.protocol.chain.initial_sync import InitialSync
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.wire.manifest import PROTOCOL_VERSION
from simulation.chain import Chain, answers

_NEXT = PROTOCOL_VERSION + 1
_NOTICE = 12
_READY = 16


def _chain(said: list[int], committees: int = 3, max_version: int = _NEXT) -> Chain:
    """Return a chain of four members. In rounds with a 1, `committees` of them announce the next
    version;
    in rounds with a -1, no member has an update."""
    chain = Chain(4, version_notice=_NOTICE)
    chain.ledger.versions.max_version = max_version
    for each in said:
        peers = chain.membership.peers
        newer = peers[:committees] if each == 1 else ()
        chain.grow(
            updates=[
                chain.update(peer, max_version=_NEXT if peer in newer else PROTOCOL_VERSION)
                for peer in (peers if each >= 0 else ())
            ]
        )
    return chain


def test_a_quorum_brings_it_about() -> None:
    few, enough = _chain([1] * 20, committees=2), _chain([1] * 20)
    assert few.ledger.versions.change is None
    assert enough.ledger.versions.change is not None


def test_it_has_spoken_for_a_while() -> None:
    assert _chain([1] * 5).ledger.versions.change is None


def test_what_was_said_is_good_for_a_while() -> None:
    assert _chain([1, *([-1] * 18)]).ledger.versions.change is not None


def test_what_was_said_is_not_good_for_ever() -> None:
    chain = Chain(4, version_notice=1000)
    chain.ledger.versions.max_version = _NEXT
    peers = chain.membership.peers
    for round_ in range(90):
        committees = peers[:3] if round_ == 0 else peers[1:3]
        # One of the three has announced it once, and nothing since.
        chain.grow(updates=[chain.update(peer, max_version=_NEXT) for peer in committees])
    # It counted long enough for the change to be scheduled, and no longer.
    assert not chain.ledger.versions._spoken.is_quorum(
        _NEXT, chain.membership.one_each, "byzantine"
    )


def test_who_does_not_speak_it_takes_leave_in_time() -> None:
    chain = _chain([1] * (_READY + _NOTICE - 4), max_version=PROTOCOL_VERSION)
    far, near = (
        chain.ledger.versions.soon_outdated,
        _chain([1] * (_READY + _NOTICE - 3), max_version=PROTOCOL_VERSION),
    )
    assert not far
    assert near.ledger.versions.soon_outdated


def test_what_is_spoken_no_more_is_called_off() -> None:
    chain = _chain([1] * (_READY + _NOTICE - 1) + [0])
    assert chain.ledger.versions[chain.round].now == PROTOCOL_VERSION


def test_nobody_follows_what_it_cannot_read() -> None:
    chain = _chain([1] * (_READY + _NOTICE + 5))
    ours, answer = Ledger(chain.manifest), answers(chain.ledger)
    machine, blamed = InitialSync(ours), []
    for _ in range(100):
        for question in machine.questions(chain.membership.peers, 0.0):
            blamed.append(machine.answered(question.peer, answer(question), 0.0))
    assert machine.done
    assert not any(blamed)
    assert ours.versions.outdated


# Private here: `_spoken`: which announcements count is otherwise visible only by a much later effect.
