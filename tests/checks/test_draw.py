"""Whom somebody looks at: as the secret and the record have it, in proportion, and never itself."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.checks.draw import (
    SECRET_BYTES,
    Look,
    commitment,
    drawn_look,
    drawn_sequences,
    is_called,
)

PEERS = [PeerId(content_id(b"%d" % number)) for number in range(6)]
ALWAYS = Fraction(1)
DRAWS = 4000


def secrets() -> list[bytes]:
    return [random.Random(number).randbytes(SECRET_BYTES) for number in range(DRAWS)]


def test_a_secret_is_bound_by_its_commitment() -> None:
    one, other = secrets()[:2]
    assert commitment(one) == commitment(one) != commitment(other)
    assert one not in commitment(one)
    with pytest.raises(ValueError, match="has 16 bytes, not 15"):
        commitment(one[:-1])


def test_a_draw_follows_from_secret_and_record() -> None:
    shares = dict.fromkeys(PEERS, 4)
    one, other = secrets()[:2]
    look = drawn_look(one, b"record", PEERS[0], shares, PEERS, ALWAYS)
    assert look == drawn_look(one, b"record", PEERS[0], shares, PEERS, ALWAYS)
    others = {
        drawn_look(one, b"%d" % number, PEERS[0], shares, PEERS, ALWAYS) for number in range(64)
    }
    assert len(others) > 10
    assert any(
        drawn_look(other, b"%d" % number, PEERS[0], shares, PEERS, ALWAYS)
        != drawn_look(one, b"%d" % number, PEERS[0], shares, PEERS, ALWAYS)
        for number in range(8)
    )


def test_each_sequence_is_drawn_alike_and_never_one_s_own() -> None:
    shares = {PEERS[0]: 50, PEERS[1]: 1, PEERS[2]: 3, PEERS[3]: 0, PEERS[4]: 6}
    looks = [drawn_look(secret, b"r", PEERS[0], shares, PEERS, ALWAYS) for secret in secrets()]
    seen = Counter(looks)
    assert {look.peer for look in seen if look} == {PEERS[1], PEERS[2], PEERS[4]}
    assert len(seen) == 1 + 3 + 6
    assert all(look is not None and look.sequence < shares[look.peer] for look in seen)
    # Ten sequences: 400 each, and a standard deviation of 19.
    assert all(abs(count - DRAWS / 10) < 100 for count in seen.values())


def test_half_of_the_looks_are_at_whoever_has_no_votes() -> None:
    shares = {PEERS[1]: 100, PEERS[2]: 1}
    looks = [drawn_look(secret, b"r", PEERS[0], shares, {PEERS[1]}, ALWAYS) for secret in secrets()]
    assert abs(looks.count(Look(PEERS[2], 0)) - DRAWS / 2) < 160
    alone = {PEERS[2]: 1}
    assert drawn_look(secrets()[0], b"r", PEERS[0], alone, {PEERS[1]}, ALWAYS) == Look(PEERS[2], 0)
    assert drawn_look(secrets()[0], b"r", PEERS[0], alone, {PEERS[2]}, ALWAYS) == Look(PEERS[2], 0)


def test_looks_are_as_many_as_the_chance_says() -> None:
    shares = dict.fromkeys(PEERS, 1)
    looks = [
        drawn_look(secret, b"r", PEERS[0], shares, PEERS, Fraction(1, 10)) for secret in secrets()
    ]
    assert abs(DRAWS - looks.count(None) - DRAWS / 10) < 100
    assert all(
        drawn_look(secret, b"r", PEERS[0], shares, PEERS, Fraction(0)) is None
        for secret in secrets()[:50]
    )
    nobody = {PEERS[0]: 4}
    assert drawn_look(secrets()[0], b"r", PEERS[0], nobody, PEERS, ALWAYS) is None
    called = sum(is_called(secret, b"dispute", Fraction(1, 4)) for secret in secrets())
    assert abs(called - DRAWS / 4) < 140


def test_of_a_large_share_some_are_looked_at_again() -> None:
    secret = secrets()[0]
    assert drawn_sequences(secret, b"d", 3, 8) == (0, 1, 2)
    drawn = drawn_sequences(secret, b"d", 64, 8)
    assert len(set(drawn)) == 8
    assert list(drawn) == sorted(drawn)
    assert set(drawn) <= set(range(64))
    assert drawn != drawn_sequences(secret, b"another", 64, 8)
