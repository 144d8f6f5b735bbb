"""Identities: RFC 8032's test vectors, libp2p's names, and non-malleable signatures."""

from __future__ import annotations

from pathlib import Path

import base58
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from distro_node.crypto.identity import (
    Identity,
    PeerId,
    peer_from_text,
    peer_text,
    short_peer,
    verify,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st
from libp2p.crypto.ed25519 import Ed25519PublicKey as LibraryKey
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.id import ID

RFC8032 = Path(__file__).parents[1] / "golden" / "rfc8032.txt"
GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493

seeds = st.binary(min_size=32, max_size=32)


def rfc8032_vectors() -> list[tuple[str, ...]]:
    lines = RFC8032.read_text().split("\n")[1:-1]
    return [(name, *fields.split()) for name, fields in (line.split(": ") for line in lines)]


def backend_accepts(peer: bytes, message: bytes, signature: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(peer).verify(signature, message)
    except InvalidSignature:
        return False
    return True


@pytest.mark.parametrize(
    ("name", "seed", "public", "message", "signature"),
    rfc8032_vectors(),
    ids=[vector[0] for vector in rfc8032_vectors()],
)
def test_rfc8032(name: str, seed: str, public: str, message: str, signature: str) -> None:
    content = b"" if message == "-" else bytes.fromhex(message)
    identity = Identity.from_seed(bytes.fromhex(seed))
    assert identity.peer.hex() == public
    assert identity.seed.hex() == seed
    assert identity.sign(content).hex() == signature
    assert verify(identity.peer, content, bytes.fromhex(signature))
    assert not verify(identity.peer, content + b"\0", bytes.fromhex(signature))


def test_all_five_vectors_are_there() -> None:
    names = [vector[0] for vector in rfc8032_vectors()]
    assert names == ["TEST 1", "TEST 2", "TEST 3", "TEST 1024", "TEST SHA(abc)"]


@settings(deadline=None)
@given(seeds)
def test_the_peer_text_is_what_libp2p_computes(seed: bytes) -> None:
    identity = Identity.from_seed(seed)
    text = peer_text(identity.peer)
    assert text == str(ID.from_pubkey(LibraryKey.from_bytes(identity.peer)))
    assert text == str(ID.from_pubkey(create_new_key_pair(seed).public_key))
    assert text.startswith("12D3KooW")
    assert peer_from_text(text) == identity.peer
    assert short_peer(identity.peer) == text[-6:]


@settings(deadline=None)
@given(
    st.text(max_size=60)
    | st.text("123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz", min_size=44).map(
        lambda tail: "12D3KooW" + tail[:44]
    )
)
def test_any_text_is_a_peer_in_its_one_spelling_or_a_value_error(text: str) -> None:
    try:
        peer = peer_from_text(text)
    except ValueError:
        return
    assert peer_text(peer) == text


def test_other_spellings_and_other_keys_are_no_peer() -> None:
    identity = Identity.from_seed(bytes(32))
    text = peer_text(identity.peer)
    shorter = "1" + text[:-1]
    rsa = base58.b58encode(bytes.fromhex("1220") + bytes(32)).decode()
    other_type = base58.b58encode(bytes.fromhex("002408021220") + identity.peer).decode()
    assert len(other_type) == len(text)
    wrongs = (
        "",
        " " + text,
        text + " ",
        text[:-1] + " ",
        shorter,
        rsa,
        other_type,
        text[:-1] + "0",
    )
    for wrong in (*wrongs, text * 100_000):
        with pytest.raises(ValueError, match="peer id"):
            peer_from_text(wrong)


def test_wrong_lengths_are_refused() -> None:
    identity = Identity.from_seed(bytes(32))
    signature = identity.sign(b"x")
    for size in (0, 31, 33, 64):
        with pytest.raises(ValueError, match="32"):
            Identity.from_seed(bytes(size))
        with pytest.raises(ValueError, match="32"):
            peer_text(PeerId(bytes(size)))
        assert not verify(PeerId(bytes(size)), b"x", signature)
    for wrong in (b"", signature[:-1], signature + b"\0", signature * 2):
        assert not verify(identity.peer, b"x", wrong)


def test_generated_identities_differ_and_hide_their_seed() -> None:
    one, other = Identity.generate(), Identity.generate()
    assert one.peer != other.peer
    assert repr(one) == f"Identity({peer_text(one.peer)})"
    assert one.seed.hex() not in repr(one)


@settings(deadline=None)
@given(st.binary(max_size=40), st.binary(max_size=80), st.binary(max_size=40))
@example(bytes(32), bytes(64), b"x")
@example(b"\xff" * 32, b"\xff" * 64, b"x")
def test_verify_never_raises(peer: bytes, signature: bytes, message: bytes) -> None:
    assert verify(PeerId(peer), message, signature) is False


def test_every_bit_of_a_signature_counts() -> None:
    identity = Identity.from_seed(bytes(range(32)))
    signature = identity.sign(b"message")
    for bit in range(512):
        changed = bytearray(signature)
        changed[bit // 8] ^= 1 << bit % 8
        assert not verify(identity.peer, b"message", bytes(changed)), f"bit {bit}"


def test_a_scalar_has_one_spelling() -> None:
    identity = Identity.from_seed(bytes(range(32)))
    signature = identity.sign(b"message")
    scalar = int.from_bytes(signature[32:], "little")
    for multiple in range(1, 16):
        other = (scalar + multiple * GROUP_ORDER).to_bytes(33, "little")
        if other[32] == 0:
            assert not verify(identity.peer, b"message", signature[:32] + other[:32])


def test_keys_of_small_order_are_refused() -> None:
    prime = 2**255 - 19
    order_8 = int.from_bytes(
        bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little"
    )
    points = [
        (y | sign << 255).to_bytes(32, "little")
        for y in (0, 1, order_8, prime - order_8, prime - 1, prime, prime + 1)
        for sign in (0, 1)
    ]
    forged = [point + bytes(32) for point in points]
    for key in points:
        # Such a key has no secret, and the backend accepts signatures all the same.
        found = [
            (message, signature)
            for message in (bytes([number]) for number in range(12))
            for signature in forged
            if backend_accepts(key, message, signature)
        ]
        assert found, f"the backend refuses {key.hex()}: is the check of ours still needed?"
        assert not any(verify(PeerId(key), *forgery) for forgery in found)
