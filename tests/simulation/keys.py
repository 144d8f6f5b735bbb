"""Signatures in a simulation: real Ed25519 keys, or hashes that cost a fiftieth.

A simulated signature is a keyed hash with the signer's secret. The verifier looks the secret up, which
is impossible in reality; but everything in a simulation, liars included, signs through this module, so
no signature can be forged either.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Protocol

from distro_node.crypto.envelope import signing_bytes, verify_detached
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import Identity, PeerId


@functools.cache
def identity(index: int) -> Identity:
    """Return the key of the peer with this number, the same in all simulations."""
    return Identity.from_seed(content_id(b"simulated peer %d" % index))


class Keys(Protocol):
    """Signs for peers by number, and verifies as `crypto.envelope.verify_detached` does."""

    def sign(self, index: int, kind: str, swarm: bytes, body: bytes) -> bytes: ...

    def verify(
        self, kind: str, swarm: bytes, sender: PeerId, body: bytes, signature: bytes
    ) -> bool: ...


class RealKeys:
    """Ed25519, as in the daemon."""

    def sign(self, index: int, kind: str, swarm: bytes, body: bytes) -> bytes:
        return identity(index).sign(signing_bytes(kind, swarm, body))

    def verify(
        self, kind: str, swarm: bytes, sender: PeerId, body: bytes, signature: bytes
    ) -> bool:
        return verify_detached(kind, swarm, sender, body, signature)


class SimulatedKeys:
    """Keyed hashes."""

    def __init__(self) -> None:
        self._secrets: dict[PeerId, bytes] = {}

    def sign(self, index: int, kind: str, swarm: bytes, body: bytes) -> bytes:
        peer = identity(index).peer
        if peer not in self._secrets:
            self._secrets[peer] = hashlib.blake2b(b"secret" + peer, digest_size=32).digest()
        return _hash(self._secrets[peer], kind, swarm, body)

    def verify(
        self, kind: str, swarm: bytes, sender: PeerId, body: bytes, signature: bytes
    ) -> bool:
        secret = self._secrets.get(sender)
        return secret is not None and _hash(secret, kind, swarm, body) == signature


def _hash(secret: bytes, kind: str, swarm: bytes, body: bytes) -> bytes:
    head = b"%s %s " % (kind.encode(), swarm)
    return hashlib.blake2b(head + body, key=secret, digest_size=64).digest()
