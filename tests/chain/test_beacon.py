"""The beacon follows from the secrets that leaders committed to, and from nothing else in a record."""

from __future__ import annotations

import dataclasses

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.protocol.audit.reputation import EPOCH_ROUNDS
from distro_node.protocol.chain.beacon import REVEALED_AFTER, Beacon, next_value
from distro_node.protocol.chain.commitments import SECRET_BYTES, secret_of
from distro_node.protocol.chain.ledger import Ledger
from distro_node.protocol.chain.record_checks import check_record
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import Record
from simulation.audited_chain import AuditedChain
from simulation.chain import Chain


@pytest.fixture
def chain() -> AuditedChain:
    return AuditedChain().grow_until(REVEALED_AFTER + 4)


def refused(chain: Chain, record: Record) -> str:
    with pytest.raises(ProtocolError) as caught:
        check_record(record, chain.ledger, chain.ledger.verify)
    assert caught.value.reason in ("audit", "record")
    return str(caught.value)


def test_it_is_the_hash_of_all_that_was_revealed(chain: AuditedChain) -> None:
    beacon = chain.ledger.find(Beacon)
    assert beacon is not None
    value = next_value(chain.manifest.swarm, b"")
    assert beacon[-1] == value
    secrets = []
    for round_ in range(chain.round):
        secrets.append(secret_of(chain.ledger[round_].record.opening))
        value = next_value(value, secrets[-1])
        assert beacon[round_] == value
    # There are no commitments in round 0, and no reveals before it is some rounds ago.
    assert [bool(secret) for secret in secrets] == [
        round_ > REVEALED_AFTER for round_ in range(chain.round)
    ]
    assert len(set(secrets)) == chain.round - REVEALED_AFTER
    with pytest.raises(IndexError):
        beacon[chain.round]


def test_nothing_else_that_a_leader_chooses_is_in_it(chain: AuditedChain) -> None:
    other = chain.fork()
    chain.grow(updates=[chain.update(peer, tokens=501) for peer in chain.membership.peers])
    other.grow(updates=[other.update(peer) for peer in other.membership.peers[1:]])
    assert chain.ledger.head != other.ledger.head
    round_ = chain.round - 1
    assert chain.ledger.index(Beacon)[round_] == other.ledger.index(Beacon)[round_]


def test_a_leader_reveals_what_it_was_bound_to_and_nothing_else(chain: AuditedChain) -> None:
    check_record(chain.record(), chain.ledger, chain.ledger.verify)
    leader, base = chain.leaders[0], chain.round - REVEALED_AFTER
    for opening in (
        b"",
        bytes(48),
        chain.secrets(leader, base).beacon,
        chain.secrets(leader, base).opening("audit"),
        chain.secrets(leader, base - 1).opening("beacon"),
    ):
        record = dataclasses.replace(chain.record(), opening=opening)
        assert "does not reveal" in refused(chain, record)


def test_an_audit_does_not_tell_what_its_auditor_will_reveal() -> None:
    """Two rounds before an auditor leads, its audit tells nobody the beacon that it will give."""
    chain = AuditedChain().check(3 * EPOCH_ROUNDS)
    told = 0
    while told < 3:
        ahead = chain.fork().grow_until(chain.round + 2)
        leader = ahead.leaders[0]
        audits = chain.audits()
        entry = next((each for each in audits if each.auditor == leader), None)
        if entry is not None:
            told += 1
            assert chain.work.commitment_round(entry.round) == ahead.round - REVEALED_AFTER
            # Nothing that the audit says is the secret, nor is any part of it.
            said = encode(entry.message(chain.ledger.parent(entry.round)))
            before = ahead.ledger.index(Beacon)[ahead.round - 1]
            foretold = {next_value(before, said[at : at + SECRET_BYTES]) for at in range(len(said))}
            early = dataclasses.replace(ahead.record(), opening=entry.opening)
            assert "does not reveal" in refused(ahead, early)
            ahead.grow()
            assert ahead.ledger.index(Beacon)[ahead.round - 1] not in foretold
        chain.grow(audits=audits)


def test_it_depends_on_the_leader_s_secret_for_it_alone(chain: AuditedChain) -> None:
    """And not on the other secret of the same commitment."""
    opening = chain.record().opening
    before = chain.ledger.index(Beacon)[chain.round - 1]
    chain.grow()
    assert chain.ledger.index(Beacon)[chain.round - 1] == next_value(before, opening[:SECRET_BYTES])


def test_each_slot_has_its_own_leader_s(chain: AuditedChain) -> None:
    leaders = chain.leaders
    slot = next(number for number in range(2, 5) if leaders[number - 1] != leaders[0])
    assert chain.reveal(slot) != chain.reveal(1)
    check_record(chain.record(slot=slot), chain.ledger, chain.ledger.verify)
    record = dataclasses.replace(chain.record(), slot=slot)
    assert "does not reveal" in refused(chain, record)


def test_who_had_no_update_then_reveals_nothing(chain: AuditedChain) -> None:
    leader = chain.leaders[0]
    others = [peer for peer in chain.membership.peers if peer != leader]
    chain.grow(updates=[chain.update(peer) for peer in others])
    without = chain.round - 1
    chain.grow_until(without + REVEALED_AFTER)
    slot = 1 + chain.leaders.index(leader)
    assert chain.reveal(slot) == b""
    check_record(chain.record(slot=slot), chain.ledger, chain.ledger.verify)
    opening = chain.secrets(leader, without).opening("beacon")
    record = dataclasses.replace(chain.record(slot=slot), opening=opening)
    assert "had not committed" in refused(chain, record)


def test_at_any_length_it_is_what_it_was(chain: AuditedChain) -> None:
    beacon = chain.ledger.find(Beacon)
    assert beacon is not None
    for length in range(chain.round + 1):
        shorter: Ledger = chain.ledger.truncated(length)
        assert [shorter.index(Beacon)[n] for n in range(-1, length)] == [
            beacon[n] for n in range(-1, length)
        ]
        with pytest.raises(IndexError):
            shorter.index(Beacon)[length]


def test_where_nothing_is_drawn_nothing_is_revealed() -> None:
    chain = Chain().grow_until(3)
    assert chain.ledger.find(Beacon) is None
    assert chain.record().opening == b""
    record = dataclasses.replace(chain.record(), opening=bytes(48))
    assert "had not committed" in refused(chain, record)
    bound = [chain.update(peer, commitment=content_id(b"")) for peer in chain.membership.peers]
    assert "with a commitment of" in refused(chain, chain.record(updates=bound))
