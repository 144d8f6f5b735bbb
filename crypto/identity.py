"""A peer's identity: an Ed25519 key pair.

In this program a peer's id is its raw public key (`PeerId`, 32 bytes). As text it is written as the
libp2p PeerId of that key (`peer_text`).

The secret key leaves an `Identity` only through `seed`; it is in no `repr` and no error.
"""

from __future__ import annotations

from typing import NewType

import base58
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

PeerId = NewType("PeerId", bytes)
"""A raw Ed25519 public key, 32 bytes; not the multihash that libp2p calls a PeerId."""

PEER_ID_BYTES = 32
SEED_BYTES = 32
SIGNATURE_BYTES = 64

# What libp2p puts before the key: an identity multihash (code 0x00) of 36 bytes, which are the
# protobuf PublicKey {Type: Ed25519 = 1, Data: 32 bytes}.
_PEER_PREFIX = bytes.fromhex("0024") + bytes.fromhex("08011220")
# 38 bytes with this prefix are always 52 characters of base58, which begin with "12D3KooW".
_PEER_TEXT_LENGTH = 52

# y of the eight points whose order divides 8: 1 (order 1), -1 (2), 0 (4) and the two of order 8.
# 0 and 1 have a second encoding, since 255 bits have room above the field's prime.
_FIELD_PRIME = 2**255 - 19
_ORDER_8_Y = int("05fc536d880238b13933c6d305acdfd5f098eff289f4c345b027b2c28f95e826", 16)
_SMALL_ORDER_Y = frozenset(
    {0, 1, _ORDER_8_Y, _FIELD_PRIME - _ORDER_8_Y, _FIELD_PRIME - 1, _FIELD_PRIME, _FIELD_PRIME + 1}
)


class Identity:
    """An Ed25519 key pair (RFC 8032). Signatures are deterministic."""

    __slots__ = ("_key", "peer")

    peer: PeerId
    """The public key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.peer = PeerId(key.public_key().public_bytes_raw())

    @classmethod
    def generate(cls) -> Identity:
        """Make a new identity from the system's randomness."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        """Make the identity of a 32-byte seed (RFC 8032's private key).

        Raises `ValueError` for another length.
        """
        if len(seed) != SEED_BYTES:
            raise ValueError(f"a seed has {SEED_BYTES} bytes, not {len(seed)}")
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @property
    def seed(self) -> bytes:
        """The secret: 32 bytes from which the whole identity is derived."""
        return self._key.private_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """Return the signature of `message`, 64 bytes. Sign only messages that contain their purpose
        (domain separation, see `envelope`), so that no signature is valid for another purpose."""
        return self._key.sign(message)

    def __repr__(self) -> str:
        return f"Identity({peer_text(self.peer)})"


def verify(peer: PeerId, message: bytes, signature: bytes) -> bool:
    """Whether `signature` is `peer`'s over `message`. Never raises, whatever the bytes.

    The check is that of `cryptography`'s backend: the equation without cofactor, a scalar S below
    the group's order, R compared by its encoding. So without the secret key a valid signature cannot be
    turned into another one. The backend accepts public keys of small order, for which anyone can make
    signatures: for the all-zero key, the all-zero signature is valid for about a quarter of all
    messages. This function refuses such keys.
    """
    # The top bit is the sign of x.
    if int.from_bytes(peer, "little") % 2**255 in _SMALL_ORDER_Y:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(peer).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def peer_text(peer: PeerId) -> str:
    """Write a peer as libp2p does: base58, `12D3KooW…`, 52 characters."""
    if len(peer) != PEER_ID_BYTES:
        raise ValueError(f"a peer id has {PEER_ID_BYTES} bytes, not {len(peer)}")
    return base58.b58encode(_PEER_PREFIX + peer).decode("ascii")


def peer_from_text(text: str) -> PeerId:
    """Read a text of `peer_text`, in that spelling only.

    Raises `ValueError` for anything else, other kinds of libp2p PeerId (RSA, CIDv1) included.
    """
    # The length first: decoding base58 takes time quadratic in it.
    if len(text) != _PEER_TEXT_LENGTH:
        raise ValueError(f"a peer id has {_PEER_TEXT_LENGTH} characters, not {len(text)}")
    try:
        raw = base58.b58decode(text)
    except ValueError:
        raise ValueError("not a peer id: a character is outside base58") from None
    peer = PeerId(raw[len(_PEER_PREFIX) :])
    # Writing it again checks the prefix too, and refuses everything that the decoder tolerates.
    if len(peer) != PEER_ID_BYTES or peer_text(peer) != text:
        raise ValueError("not the peer id of an Ed25519 key: it should begin with 12D3KooW")
    return peer


def short_peer(peer: PeerId) -> str:
    """The last six characters of `peer_text`: for people, never for comparing."""
    return peer_text(peer)[-6:]
