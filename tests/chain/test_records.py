"""Rules of what a leader puts into a record, and of how long messages remain valid."""

from __future__ import annotations

from functools import cache

import pytest
from distro_node.crypto.envelope import Envelope
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.admissions import admission_problem
from distro_node.protocol.chain.departures import leave_is_current
from distro_node.protocol.chain.evidence import check_evidence
from distro_node.protocol.member.beacon_secrets import BeaconSecrets
from distro_node.protocol.member.liveness import Liveness
from distro_node.protocol.member.proposal import Accusations, JoinRequests, compose_record
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import JoinRequest, Leave, Record
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


def test_a_leader_accuses_later_than_others_agree() -> None:
    """The members' clocks need not agree; a lease is 20 seconds."""
    silent = [len(_proposed(_chain(), now=now).departed) for now in (22.0, 26.0)]
    assert silent == [0, 3]


def test_old_requests_are_replays() -> None:
    chain = Chain(1).grow_until(70)
    members = chain.membership
    problems = [
        admission_problem(STRANGER, JoinRequest(round_, b""), 70, chain.manifest, members)
        for round_ in (5, 6)
    ]
    assert [problem is None for problem in problems] == [False, True]


def test_old_leaves_are_replays() -> None:
    members = _chain().membership
    assert [leave_is_current(said, MEMBER, 20, members) for said in (11, 12)] == [
        False,
        True,
    ]


def test_a_leave_of_before_is_a_replay() -> None:
    """From an earlier membership: replayed, it would remove a member that came back."""
    members = _chain().membership
    since = members.since[MEMBER]
    found = [leave_is_current(said, MEMBER, 5, members) for said in (since, since + 1)]
    assert found == [False, True]


def test_old_contradictions_are_not_recorded() -> None:
    chain = Chain(1).grow_until(2)
    proof = chain.evidence(0)
    chain.grow_until(67)
    with pytest.raises(ProtocolError):
        check_evidence(proof, chain.ledger, chain.ledger.verify)
