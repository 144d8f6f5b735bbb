"""Rules of noticing others: which members are present or on another chain, and how often we ask."""

from __future__ import annotations

from functools import cache

from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.diverged_peers import DivergedPeers
from distro_node.protocol.member.effects import AskSync, CompareChains, Effect
from distro_node.protocol.member.join_request import AdmissionRequest
from distro_node.protocol.member.lag_detector import LagDetector
from distro_node.protocol.member.replica import Replica
from distro_node.protocol.wire.messages import RecordId
from simulation.chain import FINGERPRINT, Chain, identity

# Private here: `_chains`: that it is bounded shows nowhere else.

ME = identity(0).peer


@cache
def _chain() -> Chain:
    return Chain(4).grow_until(2)


def _asked(kind: type[Effect], seconds: int, *, news: bool = False) -> int:
    """Count requests while a peer hints ten times a second at something new."""
    noticed, effects = LagDetector(0.0), list[Effect]()
    for step in range(1, 10 * seconds + 1):
        now = step / 10
        if not news:
            noticed.note_behind()
        noticed.note_other_chain()
        effects += noticed.requests(
            _chain().ledger, last=now if news else 0.0, patience=0.0, follows=False, now=now
        )
    return sum(isinstance(effect, kind) for effect in effects)


def test_who_seems_behind_asks_now_and_then() -> None:
    assert _asked(AskSync, 10) <= 20


def test_who_receives_nothing_asks() -> None:
    noticed, count = LagDetector(0.0), 0
    for now in range(100):
        effects = noticed.requests(
            _chain().ledger, last=0.0, patience=0.0, follows=False, now=now / 10
        )
        count += len(effects)
    assert 3 <= count <= 5


def test_chains_are_compared_now_and_then() -> None:
    assert _asked(CompareChains, 100) <= 10


def _seen(count: int) -> tuple[DivergedPeers, list[PeerId]]:
    parted, told = DivergedPeers(), []
    for number in range(count):
        peer = PeerId(number.to_bytes(32, "big"))
        told += parted.take_reports({peer: RecordId(content_id(peer))})
    return parted, told


def test_so_many_who_parted_are_known() -> None:
    assert len(_seen(2000)[0].peers) == 1024


def test_so_many_other_chains_are_known() -> None:
    assert len(_seen(2000)[0]._chains) == 1024


def test_admission_is_asked_for_now_and_then() -> None:
    """Every request goes to all members."""
    request = AdmissionRequest(b"", 0.0)
    asked = [request.renew(5, True, step / 10) for step in range(100)]
    assert sum(one is not None for one in asked) == 5


def test_who_never_gets_to_the_end_asks_all_the_same() -> None:
    """Where rounds are shorter than an update's transfer it never catches up."""
    request = AdmissionRequest(b"", 0.0)
    assert [request.renew(5, False, now) is not None for now in (9.0, 11.0)] == [False, True]


def test_who_is_far_behind_does_not_ask() -> None:
    """Once it is a member, the others wait for it."""
    chain, state = Chain(1).grow_until(9), Replica(ME, 5)
    near = []
    for round_ in (3, 4):
        state.loaded(round_, FINGERPRINT, None)
        near.append(state.is_near(chain.ledger))
    assert near == [False, True]
