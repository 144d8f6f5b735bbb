"""What a leader puts into its record, and what it keeps of requests for admission."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from distro_node.crypto.envelope import MAX_ENVELOPE_BYTES, Envelope
from distro_node.crypto.identity import PeerId
from distro_node.protocol.chain.evidence import EVIDENCE_WINDOW
from distro_node.protocol.chain.record_checks import check_record
from distro_node.protocol.member.beacon_secrets import BeaconSecrets
from distro_node.protocol.member.liveness import Liveness
from distro_node.protocol.member.proposal import Accusations, JoinRequests, compose_record
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.manifest import MAX_MEMBERS, AdmissionSpec
from distro_node.protocol.wire.messages import (
    MAX_EVIDENCE,
    DepartureEntry,
    JoinRequest,
    Leave,
    Proposal,
    Record,
    UpdateEntry,
)
from simulation.chain import FINGERPRINT, Chain, by_invitation, ticket, update_of
from simulation.swarm import identity

LEASE = 20.0


def peer(index: int) -> PeerId:
    return identity(index).peer


def _sign(kind: str, body: bytes) -> Envelope:
    raise AssertionError("who only proposes commits to nothing")


class Leader:
    """What a leader knows, at `now`."""

    def __init__(self, chain: Chain, now: float = 0.0) -> None:
        self.chain = chain
        self.now = now
        self.joins = JoinRequests()
        self.accusations = Accusations()
        self.secrets = BeaconSecrets(peer(0), _sign)
        self.presence = Liveness(peer(0), now)
        self.presence.set_members(chain.membership.peers, now)

    def ask(self, who: int, round_: int | None = None, invitation: bytes = b"") -> None:
        entry = self.chain.admission(who, round_, invitation)
        self.joins.put(entry.peer, entry.request, entry.signature, self.now)

    def compose(self, **changes: Any) -> Record:
        """Return its record, checked to be one that a quorum may sign for."""
        settings: dict[str, Any] = {
            "manifest": self.chain.manifest,
            "ledger": self.chain.ledger,
            "fingerprint": FINGERPRINT,
            "slot": 1,
            "updates": [],
            "joins": self.joins,
            "secrets": self.secrets,
            "features": (),
            "accusations": self.accusations,
            "liveness": self.presence,
            "lease": LEASE,
            "snapshot": None,
            "now": self.now,
        }
        record = compose_record(**(settings | changes))
        check_record(record, self.chain.ledger, self.chain.ledger.verify)
        return record

    def accuse(self, who: int) -> None:
        proof = self.chain.evidence(who)
        said = self.chain.envelope(0, "evidence", proof)
        self.accusations.put(proof, said)

    def admits(self, **changes: Any) -> set[PeerId]:
        return {entry.peer for entry in self.compose(**changes).admitted}


@pytest.fixture
def leader() -> Leader:
    chain = Chain(4)
    for _ in range(5):
        chain.grow(updates=[])
    return Leader(chain)


def test_a_quiet_round(leader: Leader) -> None:
    updates = sorted((leader.chain.update(i) for i in range(4)), key=lambda entry: entry.peer)
    assert leader.compose(updates=updates) == leader.chain.record()


# Admissions


def test_who_asked_lately_is_admitted(leader: Leader) -> None:
    now = leader.chain.round
    for who, round_ in ((10, now), (11, now - 2), (12, now - 3), (13, now + 1)):
        leader.ask(who, round_)
    assert leader.admits() == {peer(10), peer(11)}


def test_who_stopped_asking_is_forgotten(leader: Leader) -> None:
    leader.ask(10)
    leader.now = 10.0
    leader.ask(11)
    leader.now = 16.0
    assert leader.admits() == {peer(11)}
    assert not leader.joins.has(peer(10))


def test_the_newest_request_stands(leader: Leader) -> None:
    """An older one is a replay, and must not displace it."""
    now = leader.chain.round
    leader.ask(10, now)
    leader.ask(10, now - 3)
    assert leader.admits() == {peer(10)}


def test_who_was_admitted_waits_no_longer(leader: Leader) -> None:
    leader.ask(10)
    assert leader.joins.has(peer(10))
    leader.joins.drop(peer(10))
    leader.joins.drop(peer(10))
    assert leader.admits() == set()


def test_who_has_waited_longest_comes_first() -> None:
    """Not the lowest id: those are cheap to make."""
    chain = Chain(2, admission=AdmissionSpec(max_members=4))
    leader = Leader(chain)
    asking = sorted(range(10, 30), key=peer, reverse=True)
    for who in asking:
        leader.ask(who)
    assert leader.admits() == {peer(who) for who in asking[:2]}
    record = leader.compose()
    assert list(record.admitted) == sorted(record.admitted, key=lambda entry: entry.peer)


def test_a_flood_of_requests_is_bounded(leader: Leader) -> None:
    request = JoinRequest(leader.chain.round, b"")
    for number in range(5000):
        leader.joins.put(PeerId(number.to_bytes(32, "big")), request, bytes(64), 0.0)
    waiting = [n for n in range(5000) if leader.joins.has(PeerId(n.to_bytes(32, "big")))]
    assert waiting == list(range(1024))
    # Waiting peers may repeat their requests; others get in when the flood has dried up.
    leader.joins.put(PeerId(bytes(32)), request, bytes(64), 14.0)
    leader.joins.put(peer(9), request, bytes(64), 16.0)
    assert leader.joins.has(PeerId(bytes(32)))
    assert leader.joins.has(peer(9))


def test_invitations_are_asked_for() -> None:
    issuer, policy = by_invitation()
    chain = Chain(0, admission=policy)
    leader = Leader(chain)
    leader.ask(1, invitation=ticket(chain.manifest, issuer, peer(1)))
    leader.ask(2, invitation=ticket(chain.manifest, issuer, peer(1)))
    leader.ask(3)
    assert leader.admits() == {peer(1)}


@pytest.mark.parametrize("count", [64, 66, 100])
def test_a_start_with_many_members(count: int) -> None:
    """Round 0 admits all members that the start takes in one record, however many."""
    chain = Chain(0, start_members=count)
    leader = Leader(chain)
    for who in range(1, count):
        leader.ask(who)
    assert len(leader.admits()) == count - 1


# Departures


def test_leaves_and_silent_members(leader: Leader) -> None:
    said = Leave(leader.chain.round)
    signature = leader.chain.signature(1, "leave", said)
    leader.presence.note_leave(peer(1), said, signature)
    leader.now = 30.0
    leader.presence.note_message(peer(3), 20.0)
    departed = leader.compose().departed
    assert set(departed) == {
        DepartureEntry(peer(1), "left", said.round, signature),
        DepartureEntry(peer(2), "silent", 0, b""),
    }


def test_a_leader_accuses_later_than_others_agree(leader: Leader) -> None:
    leader.now = LEASE + 2
    assert leader.presence.silent(LEASE, leader.now)
    assert leader.compose().departed == ()


def test_the_silent_lose_their_update_and_leavers_do_not(leader: Leader) -> None:
    said = Leave(leader.chain.round)
    leader.presence.note_leave(peer(1), said, leader.chain.signature(1, "leave", said))
    leader.now = 30.0
    for who in (1, 3):
        leader.presence.note_message(peer(who), 30.0)
    updates = sorted((leader.chain.update(i) for i in range(4)), key=lambda entry: entry.peer)
    record = leader.compose(updates=updates)
    assert {entry.peer for entry in record.updates} == {peer(0), peer(1), peer(3)}


def test_a_leave_of_before_is_not_reported(leader: Leader) -> None:
    leader.presence.note_leave(peer(1), Leave(0), leader.chain.signature(1, "leave", Leave(0)))
    assert leader.compose().departed == ()


def test_the_last_one_stays_in_the_book() -> None:
    chain = Chain(1)
    chain.grow(updates=[])
    leader = Leader(chain)
    said = Leave(chain.round)
    leader.presence.note_leave(peer(0), said, chain.signature(0, "leave", said))
    assert leader.compose().departed == ()


# Expulsions


def test_who_contradicted_itself_is_reported_and_nothing_else_of_it(leader: Leader) -> None:
    said = Leave(leader.chain.round)
    leader.presence.note_leave(peer(1), said, leader.chain.signature(1, "leave", said))
    leader.accuse(1)
    record = leader.compose()
    assert record.evidence == (leader.chain.evidence(1),)
    assert record.departed == ()


def test_an_accusation_is_forgotten_when_it_is_recorded_or_too_old(leader: Leader) -> None:
    leader.accuse(1)
    leader.accuse(2)
    assert not leader.accusations.wants(peer(1))
    leader.chain.grow(evidence=(leader.chain.evidence(1),))
    leader.accusations.forget(leader.chain.ledger)
    assert [envelope.body for envelope in leader.accusations.envelopes()] == [
        encode(evidence) for evidence in leader.compose().evidence
    ]
    assert [evidence.peer for evidence in leader.compose().evidence] == [peer(2)]
    for _ in range(EVIDENCE_WINDOW):
        leader.chain.grow()
    assert leader.compose().evidence == ()
    assert leader.accusations.envelopes() == []


def test_accusations_are_bounded(leader: Leader) -> None:
    proof = leader.chain.evidence(1)
    for who in range(4, 500):
        other = dataclasses.replace(proof, peer=peer(who))
        leader.accusations.put(other, leader.chain.envelope(0, "evidence", other))
    assert len(leader.accusations.envelopes()) == 64
    assert not leader.accusations.wants(peer(1))


def test_accusations_do_not_empty_the_book() -> None:
    chain = Chain(1)
    chain.grow(updates=[])
    leader = Leader(chain)
    leader.accuse(0)
    assert leader.compose().evidence == ()


# Size


def test_the_largest_record_fits_a_message() -> None:
    """With as many members as a manifest allows; all contribute, leave, and others ask."""
    chain = Chain(MAX_MEMBERS, admission=AdmissionSpec(max_members=MAX_MEMBERS))
    for _ in range(3):
        chain.grow(updates=[])
    leader = Leader(chain)
    said = Leave(chain.round)
    updates = []
    for member in chain.membership.peers:
        leader.presence.note_leave(member, said, chain.signature(member, "leave", said))
        # The longest value of every field; signatures are not checked in this test.
        updates.append(UpdateEntry(member, update_of(member, 0), 2**32, 2**63 - 1, 0.1, bytes(64)))
    for who in range(MAX_MEMBERS, MAX_MEMBERS + 100):
        entry = chain.admission(who, invitation=bytes(64))
        leader.joins.put(entry.peer, entry.request, entry.signature, 0.0)
    for who in range(MAX_EVIDENCE + 1):
        leader.accuse(who)
    record = compose_record(
        manifest=chain.manifest,
        ledger=chain.ledger,
        fingerprint=2**64 - 1,
        slot=1,
        updates=updates,
        joins=leader.joins,
        accusations=leader.accusations,
        secrets=leader.secrets,
        features=(),
        liveness=leader.presence,
        lease=LEASE,
        snapshot=None,
        now=0.0,
    )
    assert len(record.updates) == MAX_MEMBERS
    assert len(record.evidence) == MAX_EVIDENCE
    assert len(record.departed) == len(record.admitted) == 64
    envelope_bytes = 200
    assert len(encode(Proposal(2**20, record))) + envelope_bytes < MAX_ENVELOPE_BYTES
