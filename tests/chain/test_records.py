"""Rules of what a leader puts into a record."""

from __future__ import annotations

from functools import cache

from distro_node.crypto.envelope import Envelope
from distro_node.crypto.identity import PeerId
from distro_node.protocol.member.beacon_secrets import BeaconSecrets
from distro_node.protocol.member.liveness import Liveness
from distro_node.protocol.member.proposal import Accusations, JoinRequests, compose_record
from distro_node.protocol.wire.messages import Leave, Record
from simulation.chain import FINGERPRINT, Chain, identity

ME, MEMBER, STRANGER = identity(0).peer, identity(1).peer, identity(40).peer


@cache
def _chain() -> Chain:
    return Chain(4).grow_until(2)


def _envelope(number: int, size: int, sender: PeerId = MEMBER) -> Envelope:
    body = number.to_bytes(8, "big").ljust(size, b"\0")
    return Envelope(kind="vote", swarm=bytes(32), sender=sender, body=body, signature=bytes(64))


@cache
def _crowd() -> Chain:
    """Seventy members, which have done nothing yet."""
    chain = Chain(70)
    chain.grow(updates=[])
    chain.grow(updates=[])
    return chain


def _signs(kind: str, body: bytes) -> Envelope:
    raise AssertionError("it is not asked to sign anything")


def _proposed(chain: Chain, *, now: float = 0.0, **known: object) -> Record:
    watch = Liveness(ME, 0.0)
    watch.set_members(chain.membership.peers, 0.0)
    for peer, leave, signature in known.pop("leaves", ()):  # type: ignore[misc]
        watch.note_leave(peer, leave, signature)
    settings = {"joins": JoinRequests(), "accusations": Accusations(), "updates": []}
    settings |= {"secrets": BeaconSecrets(ME, _signs), "features": ()}
    return compose_record(
        manifest=chain.manifest,
        ledger=chain.ledger,
        fingerprint=FINGERPRINT,
        slot=1,
        liveness=watch,
        lease=20.0,
        snapshot=None,
        now=now,
        **(settings | known),  # type: ignore[arg-type]
    )


def test_so_many_are_admitted_at_once() -> None:
    joins = JoinRequests()
    for who in range(100, 170):
        entry = _chain().admission(who)
        joins.put(entry.peer, entry.request, entry.signature, 0.0)
    assert len(_proposed(_chain(), joins=joins).admitted) == 64


def test_so_many_leave_at_once() -> None:
    said = Leave(_crowd().round)
    leaves = [
        (peer, said, _crowd().signature(peer, "leave", said)) for peer in _crowd().membership.peers
    ]
    departed = _proposed(_crowd(), leaves=leaves).departed
    assert sum(entry.reason == "left" for entry in departed) == 64


def test_so_many_are_expelled_at_once() -> None:
    accusations = Accusations()
    for peer in _crowd().membership.peers[:20]:
        accusations.put(_crowd().evidence(peer), _envelope(1, 8))
    assert len(_proposed(_crowd(), accusations=accusations).evidence) == 16


def test_who_is_behind_is_not_admitted() -> None:
    """It sent its request three rounds ago, and could not train."""
    chain, joins = Chain(2).grow_until(5), JoinRequests()
    for who, round_ in ((20, 2), (21, 3)):
        entry = chain.admission(who, round_)
        joins.put(entry.peer, entry.request, entry.signature, 0.0)
    admitted = _proposed(chain, joins=joins).admitted
    assert [entry.peer for entry in admitted] == [identity(21).peer]
