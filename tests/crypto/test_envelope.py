"""Envelopes: a sealed one opens, an altered one does not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from distro_node.crypto.envelope import (
    MAX_ENVELOPE_BYTES,
    Envelope,
    EnvelopeError,
    open_envelope,
    seal,
    signing_bytes,
    verify_detached,
)
from distro_node.crypto.identity import Identity, PeerId
from hypothesis import given, settings
from hypothesis import strategies as st

GOLDEN = Path(__file__).parents[1] / "golden" / "envelope.hex"
REASONS = {"oversized", "malformed", "wrong_swarm", "bad_signature"}

ALICE = Identity.from_seed(bytes(range(32)))
MALLORY = Identity.from_seed(bytes(range(1, 33)))
SWARM = bytes(range(100, 132))
OTHER_SWARM = bytes(range(101, 133))

kinds = st.from_regex(r"[a-z][a-z0-9_-]{0,31}", fullmatch=True)
swarms = st.binary(min_size=32, max_size=32)
bodies = st.binary(max_size=200)


def fields_of(kind: str = "vote", body: bytes = b"body", by: Identity = ALICE) -> Envelope:
    return open_envelope(seal(by, kind, SWARM, body), swarm=SWARM)


def layout(envelope: Envelope) -> bytes:
    """Return the documented bytes, written a second time."""
    kind = envelope.kind.encode()
    return (
        b"\xd1\x01"
        + len(kind).to_bytes(1, "big")
        + kind
        + envelope.swarm
        + envelope.sender
        + len(envelope.body).to_bytes(4, "big")
        + envelope.body
        + envelope.signature
    )


def reason_for(data: bytes, swarm: bytes = SWARM, max_bytes: int = MAX_ENVELOPE_BYTES) -> str:
    with pytest.raises(EnvelopeError) as caught:
        open_envelope(data, swarm=swarm, max_bytes=max_bytes)
    return caught.value.reason


def open_or_the_one_error(data: bytes) -> bool:
    """Check the fuzz invariant: an envelope in its one spelling, or the one error."""
    try:
        envelope = open_envelope(data, swarm=SWARM)
    except EnvelopeError as error:
        if error.reason not in REASONS:
            raise
        return False
    assert layout(envelope) == data
    assert verify_detached(envelope.kind, SWARM, envelope.sender, envelope.body, envelope.signature)
    return True


def mutate(data: bytes, source: random.Random) -> bytes:
    """Change, cut, extend, repeat or exchange a few bytes."""
    changed = bytearray(data)
    for _ in range(source.randint(1, 3)):
        place = source.randrange(len(changed) + 1)
        match source.randrange(5):
            case 0 if place < len(changed):
                changed[place] ^= 1 << source.randrange(8)
            case 1:
                del changed[place : place + source.randint(1, 8)]
            case 2:
                changed[place:place] = source.randbytes(source.randint(1, 8))
            case 3:
                changed[place : place + 4] = source.choice((0, 1, 2**31, 2**32 - 1)).to_bytes(4)
            case _:
                changed = changed[place:] + changed[:place]
    return bytes(changed)


def test_the_format_is_frozen() -> None:
    expected = bytes.fromhex(GOLDEN.read_text())
    assert seal(ALICE, "vote", SWARM, b"golden body") == expected
    envelope = open_envelope(expected, swarm=SWARM)
    assert envelope == Envelope(
        kind="vote",
        swarm=SWARM,
        sender=ALICE.peer,
        body=b"golden body",
        signature=expected[-64:],
    )


@settings(deadline=None)
@given(kinds, swarms, bodies, st.binary(min_size=32, max_size=32))
def test_what_is_sealed_opens(kind: str, swarm: bytes, body: bytes, seed: bytes) -> None:
    identity = Identity.from_seed(seed)
    data = seal(identity, kind, swarm, body)
    assert len(data) == 135 + len(kind) + len(body)
    envelope = open_envelope(data, swarm=swarm)
    assert (envelope.kind, envelope.swarm, envelope.sender) == (kind, swarm, identity.peer)
    assert envelope.body == body
    assert layout(envelope) == data
    assert verify_detached(kind, swarm, identity.peer, body, envelope.signature)


@settings(deadline=None)
@given(kinds, swarms, bodies, kinds, swarms, bodies)
def test_signing_bytes_are_injective(
    kind: str, swarm: bytes, body: bytes, other_kind: str, other_swarm: bytes, other_body: bytes
) -> None:
    one, other = (kind, swarm, body), (other_kind, other_swarm, other_body)
    assert (signing_bytes(*one) == signing_bytes(*other)) == (one == other)


@pytest.mark.parametrize("cut", range(1, 8))
def test_no_shift_between_the_fields_signs_the_same(cut: int) -> None:
    # If the length of the kind were not signed, these would give the same bytes.
    kind, body = "proposal", b"body"
    rest = kind[cut:].encode() + SWARM + body
    shifted = signing_bytes(kind[:cut], rest[:32], rest[32:])
    assert shifted != signing_bytes(kind, SWARM, body)
    assert len(shifted) == len(signing_bytes(kind, SWARM, body))


def test_what_is_signed_begins_with_the_programs_name() -> None:
    signed = signing_bytes("vote", SWARM, b"body")
    assert signed == b"distro-node envelope\0\x01" + b"\x04vote" + SWARM + b"body"


@pytest.mark.parametrize("body", [b"", b"body", bytes(40)], ids=["empty", "short", "zeros"])
def test_every_flipped_bit_is_noticed(body: bytes) -> None:
    data = seal(ALICE, "vote", SWARM, body)
    opened = []
    for bit in range(len(data) * 8):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        if open_or_the_one_error(bytes(changed)):
            opened.append(bit)
    assert opened == []


def test_every_other_value_of_the_structural_bytes_is_noticed() -> None:
    data = seal(ALICE, "vote", SWARM, b"body")
    length_at = 3 + len("vote") + 64
    for place in (*range(7), *range(length_at, length_at + 4)):
        for value in range(256):
            changed = bytearray(data)
            changed[place] = value
            assert open_or_the_one_error(bytes(changed)) == (bytes(changed) == data)


def test_every_cut_and_any_extension_is_noticed() -> None:
    data = seal(ALICE, "vote", SWARM, b"body")
    for end in range(len(data)):
        assert reason_for(data[:end]) == "malformed"
    for more in (b"\0", data[:1], data):
        assert reason_for(data + more) == "malformed"
        assert reason_for(more + data) == "malformed"


def test_a_message_of_another_swarm_is_refused() -> None:
    data = seal(ALICE, "vote", OTHER_SWARM, b"body")
    assert reason_for(data) == "wrong_swarm"
    moved = bytearray(data)
    moved[7:39] = SWARM
    assert reason_for(bytes(moved)) == "bad_signature"
    signature = data[-64:]
    assert verify_detached("vote", OTHER_SWARM, ALICE.peer, b"body", signature)
    assert not verify_detached("vote", SWARM, ALICE.peer, b"body", signature)


def test_a_signature_for_one_kind_is_none_for_another() -> None:
    vote = fields_of("vote")
    relabelled = {**vars(vote), "kind": "skip"}
    assert reason_for(layout(Envelope(**relabelled))) == "bad_signature"
    assert not verify_detached("skip", SWARM, ALICE.peer, vote.body, vote.signature)


def test_nobody_signs_for_somebody_else() -> None:
    theirs = fields_of(by=MALLORY)
    claimed = {**vars(theirs), "sender": ALICE.peer}
    assert reason_for(layout(Envelope(**claimed))) == "bad_signature"
    bare = MALLORY.sign(b"body")
    assert not verify_detached("vote", SWARM, MALLORY.peer, b"body", bare)


def test_an_all_zero_sender_is_nobody() -> None:
    for number in range(64):
        nobody = Envelope(
            kind="vote",
            swarm=SWARM,
            sender=PeerId(bytes(32)),
            body=bytes([number]),
            signature=bytes(64),
        )
        assert reason_for(layout(nobody)) == "bad_signature"


@pytest.mark.parametrize(
    "kind",
    ["", "Vote", "vote ", "1vote", "_vote", "vote\n", "vöte", "v" * 33, "a.b", "a/b", "a\0b"],
)
def test_a_kind_is_a_short_lower_case_word(kind: str) -> None:
    with pytest.raises(ValueError, match="kind"):
        seal(ALICE, kind, SWARM, b"")
    assert not verify_detached(kind, SWARM, ALICE.peer, b"", bytes(64))
    encoded = kind.encode("latin-1")
    data = bytearray(seal(ALICE, "v", SWARM, b""))
    data[2:4] = bytes([len(encoded)]) + encoded
    assert reason_for(bytes(data)) == "malformed"


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_swarm_id_has_32_bytes(size: int) -> None:
    with pytest.raises(ValueError, match="32"):
        seal(ALICE, "vote", bytes(size), b"")
    assert not verify_detached("vote", bytes(size), ALICE.peer, b"", bytes(64))


def test_the_size_limit_is_exact() -> None:
    largest = bytes(MAX_ENVELOPE_BYTES - 135 - len("vote"))
    data = seal(ALICE, "vote", SWARM, largest)
    assert len(data) == MAX_ENVELOPE_BYTES
    assert open_envelope(data, swarm=SWARM).body == largest
    assert reason_for(data, max_bytes=MAX_ENVELOPE_BYTES - 1) == "oversized"
    assert reason_for(data + b"\0") == "oversized"
    with pytest.raises(ValueError, match="exceeds the limit"):
        seal(ALICE, "vote", SWARM, largest + b"\0")
    wider = seal(ALICE, "vote", SWARM, largest + b"\0", max_bytes=MAX_ENVELOPE_BYTES + 1)
    assert reason_for(wider) == "oversized"
    assert open_envelope(wider, swarm=SWARM, max_bytes=len(wider)).body == largest + b"\0"


@settings(deadline=None)
@given(st.randoms(use_true_random=False), kinds, bodies)
def test_mutated_envelopes_give_the_one_error(
    source: random.Random, kind: str, body: bytes
) -> None:
    data = seal(ALICE, kind, SWARM, body)
    changed = mutate(data, source)
    assert open_or_the_one_error(changed) == (changed == data)
