"""A commitment binds its author to two secrets, and each opening reveals one of them alone."""

from __future__ import annotations

import dataclasses

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.protocol.chain.commitments import (
    OPENING_BYTES,
    SECRET_BYTES,
    Purpose,
    SecretPair,
    opens,
    secret_of,
)

PAIR = SecretPair(beacon=bytes(range(16)), audit=bytes(range(16, 32)))
PURPOSES: tuple[Purpose, ...] = ("beacon", "audit")
BOTH = pytest.mark.parametrize("purpose", PURPOSES)


def other(purpose: Purpose) -> Purpose:
    return "audit" if purpose == "beacon" else "beacon"


@BOTH
def test_an_opening_reveals_its_secret_and_not_the_other_one(purpose: Purpose) -> None:
    opening = PAIR.opening(purpose)
    assert len(opening) == OPENING_BYTES
    assert opens(opening, purpose, PAIR.commitment)
    assert secret_of(opening) == getattr(PAIR, purpose)
    assert getattr(PAIR, other(purpose)) not in opening


@BOTH
def test_what_opens_it_for_one_purpose_does_not_open_it_for_the_other(purpose: Purpose) -> None:
    opening = PAIR.opening(purpose)
    assert not opens(opening, other(purpose), PAIR.commitment)
    # Not even if the author had committed to the same secret for both purposes.
    same = SecretPair(beacon=PAIR.beacon, audit=PAIR.beacon)
    assert not opens(same.opening(purpose), other(purpose), same.commitment)


@BOTH
@pytest.mark.parametrize("changed", PURPOSES)
def test_a_commitment_binds_both(purpose: Purpose, changed: Purpose) -> None:
    another = dataclasses.replace(PAIR, **{changed: bytes(16)})
    assert another.commitment != PAIR.commitment
    assert not opens(another.opening(purpose), purpose, PAIR.commitment)
    assert opens(another.opening(purpose), purpose, another.commitment)


def test_they_are_not_interchanged() -> None:
    assert SecretPair(beacon=PAIR.audit, audit=PAIR.beacon).commitment != PAIR.commitment


@BOTH
def test_no_other_bytes_open_it(purpose: Purpose) -> None:
    opening = PAIR.opening(purpose)
    for at in range(OPENING_BYTES):
        wrong = opening[:at] + bytes([opening[at] ^ 1]) + opening[at + 1 :]
        assert not opens(wrong, purpose, PAIR.commitment)
    for wrong in (b"", opening[:-1], opening + b"\0", secret_of(opening)):
        assert not opens(wrong, purpose, PAIR.commitment)
    assert not opens(opening, purpose, b"")


def test_it_is_the_hash_of_the_two_secrets_hashes() -> None:
    beacon = content_id(b"distro-node beacon secret\0" + PAIR.beacon)
    audit = content_id(b"distro-node audit secret\0" + PAIR.audit)
    assert PAIR.commitment == content_id(b"distro-node commitment\0" + beacon + audit)
    assert PAIR.opening("beacon") == PAIR.beacon + audit
    assert PAIR.opening("audit") == PAIR.audit + beacon


def test_a_secret_is_too_long_to_be_tried() -> None:
    for length in (0, 15, 17):
        for purpose in PURPOSES:
            with pytest.raises(ValueError, match=f"has {SECRET_BYTES} bytes, not {length}"):
                dataclasses.replace(PAIR, **{purpose: bytes(length)})
