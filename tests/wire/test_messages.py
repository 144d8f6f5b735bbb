"""What messages may hold, and what they are about."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from distro_node.crypto.envelope import MAX_ENVELOPE_BYTES, Envelope
from distro_node.crypto.hashing import content_id
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.errors import ProtocolError
from distro_node.protocol.wire.messages import (
    BALLOT_KINDS,
    MAX_MESSAGE_BYTES,
    MESSAGE_TYPES,
    Ballot,
    Proposal,
    Record,
    decode_message,
    parent_of,
    round_of,
)
from simulation.formats import CERTIFICATE, EVIDENCE, FORMATS, PEERS, RECORD


def test_every_kind_has_its_own_name() -> None:
    assert set(BALLOT_KINDS) <= MESSAGE_TYPES.keys()
    assert {MESSAGE_TYPES[kind] for kind in BALLOT_KINDS} == {Ballot}
    assert MAX_MESSAGE_BYTES == MAX_ENVELOPE_BYTES


def test_a_message_is_what_its_envelope_says() -> None:
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
        # Evidence is about an earlier round, on the same chain.
        assert round_of(message) == {"join": 50, "evidence": 49}.get(kind, 51)
        says_parent = kind not in ("join", "leave", "heartbeat")
        parent = EVIDENCE.parent if kind == "evidence" else RECORD.parent
        assert parent_of(message) == (parent if says_parent else None)


def test_a_records_id_is_that_of_its_bytes() -> None:
    assert RECORD.id == content_id(encode(RECORD))
    assert dataclasses.replace(RECORD, fingerprint=0).id != RECORD.id


def test_entries_and_ballots_are_what_was_signed() -> None:
    said = RECORD.announcement(RECORD.updates[0])
    assert encode(said) == FORMATS["announcement"].data
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


@pytest.mark.parametrize("field", ["updates", "admitted", "departed"])
def test_lists_have_bounds(field: str) -> None:
    entry = getattr(RECORD, field)[0]
    too_many = dataclasses.replace(RECORD, **{field: (entry,) * 4097})
    with pytest.raises(ProtocolError) as caught:
        FORMATS["record"].decode(encode(too_many))
    assert caught.value.reason in ("invalid", "oversized")
    with pytest.raises(ProtocolError) as caught:
        FORMATS["proposal"].decode(encode(Proposal(1, too_many)))
    assert caught.value.reason in ("invalid", "oversized")
    assert isinstance(RECORD, Record)
