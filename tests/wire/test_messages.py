"""What messages may hold, and which round and parent they name."""

from __future__ import annotations

import dataclasses
from itertools import islice
from typing import Any

import pytest
from distro_node.crypto.envelope import MAX_ENVELOPE_BYTES, Envelope
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import (
    BALLOT_KINDS,
    MAX_AUDITS,
    MAX_MESSAGE_BYTES,
    MAX_REAUDITS,
    MAX_SEQUENCES,
    MESSAGE_TYPES,
    AuditEntry,
    AuditScore,
    Ballot,
    Proposal,
    ReauditEntry,
    UpdateEntry,
    decode_message,
    parent_of,
    round_of,
)
from simulation.formats import AUDITED_RECORD, CERTIFICATE, FORMATS, PEERS, RECORD


def test_every_kind_has_its_own_name() -> None:
    assert set(BALLOT_KINDS) <= MESSAGE_TYPES.keys()
    assert {MESSAGE_TYPES[kind] for kind in BALLOT_KINDS} == {Ballot}
    assert MAX_MESSAGE_BYTES == MAX_ENVELOPE_BYTES


def test_a_message_is_what_its_envelope_states() -> None:
    for kind, cls in MESSAGE_TYPES.items():
        data = FORMATS[kind].data
        for other, other_cls in MESSAGE_TYPES.items():
            letter = Envelope(
                kind=other, swarm=bytes(32), sender=PEERS[0], body=data, signature=bytes(64)
            )
            if other_cls is cls:
                assert decode_message(letter) == FORMATS[kind].value
            else:
                with pytest.raises(ProtocolError):
                    decode_message(letter)


def test_rounds_and_parents() -> None:
    for kind in MESSAGE_TYPES:
        message = FORMATS[kind].value
        # Evidence and audits are about earlier rounds, on the same chain.
        earlier = {"join": 50, "evidence": 49, "audit": 50, "reaudit": 49}
        assert round_of(message) == earlier.get(kind, 51)
        says_parent = kind not in ("join", "leave", "heartbeat")
        parent = getattr(message, "parent", RECORD.parent) if kind in earlier else RECORD.parent
        assert parent_of(message) == (parent if says_parent else None)


def test_a_records_id_is_that_of_its_bytes() -> None:
    assert RECORD.id == content_id(encode(RECORD))
    assert dataclasses.replace(RECORD, fingerprint=0).id != RECORD.id


def test_entries_and_ballots_are_what_was_signed() -> None:
    said = RECORD.announcement(RECORD.updates[0])
    assert encode(said) == FORMATS["announcement"].data
    bound = AUDITED_RECORD.announcement(AUDITED_RECORD.updates[0])
    assert bound.commitment == AUDITED_RECORD.updates[0].commitment
    assert encode(bound) == FORMATS["announcement_bound"].data
    signed = CERTIFICATE.ballots[0]
    assert encode(CERTIFICATE.ballot(signed)) == FORMATS["finalize"].data


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("announcement", {"round": -1}),
        ("announcement", {"round": 2**63}),
        ("announcement", {"parent": bytes(31)}),
        ("announcement", {"update": bytes(33)}),
        ("announcement", {"size": 0}),
        ("announcement", {"size": 2**32 + 1}),
        ("announcement", {"loss": 2e30}),
        ("announcement", {"fingerprint": -1}),
        ("announcement", {"commitment": bytes(33)}),
        ("audit", {"opening": bytes(47)}),
        ("audit", {"total": 2**62 + 1}),
        ("audit", {"squares": 0}),
        ("audit", {"first_half": AuditScore(1, 0)}),
        ("audit", {"first_half": AuditScore(2**62 + 1, 1)}),
        ("reaudit", {"auditor": bytes(31)}),
        ("reaudit", {"scores": ()}),
        ("reaudit", {"scores": (AuditScore(0, 1),) * (MAX_SEQUENCES + 1)}),
        ("reaudit", {"scores": (AuditScore(0, 2**62 + 1),)}),
        ("join", {"ticket": bytes(65)}),
        ("heartbeat", {"count": 2**63}),
        ("vote", {"slot": 0}),
        ("vote", {"slot": 2**20 + 1}),
        ("vote", {"silent": b""}),
        ("vote", {"silent": bytes(513)}),
        ("proposal", {"slot": 0}),
    ],
)
def test_fields_have_bounds(kind: str, changes: dict[str, Any]) -> None:
    data = encode(dataclasses.replace(FORMATS[kind].value, **changes))
    with pytest.raises(ProtocolError) as caught:
        FORMATS[kind].decode(data)
    assert caught.value.reason == "invalid"
    assert next(iter(changes)) in str(caught.value)


@pytest.mark.parametrize(
    ("field", "most"),
    [
        *(("updates", 4096), ("admitted", 4096), ("departed", 4096)),
        *(("audits", MAX_AUDITS), ("reaudits", MAX_REAUDITS)),
    ],
)
def test_lists_have_bounds(field: str, most: int) -> None:
    entry = getattr(AUDITED_RECORD, field)[0]
    too_many = dataclasses.replace(RECORD, **{field: (entry,) * (most + 1)})
    with pytest.raises(ProtocolError) as caught:
        FORMATS["record"].decode(encode(too_many))
    assert caught.value.reason in ("invalid", "oversized")
    with pytest.raises(ProtocolError) as caught:
        FORMATS["proposal"].decode(encode(Proposal(1, too_many)))
    assert caught.value.reason in ("invalid", "oversized")


def test_a_thousand_updates_and_all_audits_fit_in_a_message() -> None:
    """With each field at its maximum length."""
    peers = [PeerId(content_id(number.to_bytes(4, "big"))) for number in range(1024)]
    most, signature = 2**63 - 1, bytes(64)
    updates = (
        UpdateEntry(
            *(peer, content_id(peer), 2**32, 2**40, 2.5, signature),
            capacity=2**40,
            max_version=2**16,
            commitment=content_id(peer),
        )
        for peer in peers
    )
    audits = (AuditEntry(peer, most, bytes(48), 2**62, 2**62, signature) for peer in peers)
    scores = (AuditScore(2**62, 2**62),) * MAX_SEQUENCES
    again = (ReauditEntry(peer, most, peer, scores, signature) for peer in peers[:MAX_REAUDITS])
    record = dataclasses.replace(
        RECORD,
        updates=tuple(updates),
        audits=tuple(islice(audits, MAX_AUDITS)),
        reaudits=tuple(again),
    )
    data = encode(Proposal(2**20, record))
    assert FORMATS["proposal"].decode(data) == Proposal(2**20, record)
    assert len(data) <= MAX_MESSAGE_BYTES - 4096
