"""Commitments of members to secrets.

Each update commits its author by one hash to two independent secrets. One is for the beacon (`beacon`):
the author reveals it in the record of a round that it leads. The other draws the author's audit
(`audits`): the author reveals it with the audit's result, which is some rounds earlier. If both were the
same, each audit would tell everybody the author's part of a beacon to come.

A secret is revealed as an *opening*: the secret, and the hash of the other secret. So anybody can check
the opening against the commitment, and the other secret stays unknown. The two secrets are hashed
differently: what opens a commitment for one purpose does not open any for the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...crypto.hashing import CONTENT_ID_BYTES, ContentId, content_id

SECRET_BYTES = 16
"""Length of a secret: enough to rule out brute force."""

OPENING_BYTES = SECRET_BYTES + CONTENT_ID_BYTES

Purpose = Literal["beacon", "audit"]
"""What a secret is for."""


@dataclass(frozen=True, slots=True)
class SecretPair:
    """The two secrets to which an update commits its author."""

    beacon: bytes
    audit: bytes

    def __post_init__(self) -> None:
        for secret in (self.beacon, self.audit):
            if len(secret) != SECRET_BYTES:
                raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")

    @property
    def commitment(self) -> ContentId:
        """The commitment to both."""
        return _commitment(_hash(self.beacon, "beacon"), _hash(self.audit, "audit"))

    def opening(self, purpose: Purpose) -> bytes:
        """Return the opening that reveals the secret for this purpose, and not the other one."""
        if purpose == "beacon":
            return self.beacon + _hash(self.audit, "audit")
        return self.audit + _hash(self.beacon, "beacon")


def opens(opening: bytes, purpose: Purpose, commitment: bytes) -> bool:
    """Return whether an opening reveals the secret for this purpose of this commitment."""
    if len(opening) != OPENING_BYTES:
        return False
    own, other = _hash(secret_of(opening), purpose), opening[SECRET_BYTES:]
    return commitment == (
        _commitment(own, other) if purpose == "beacon" else _commitment(other, own)
    )


def secret_of(opening: bytes) -> bytes:
    """Return the secret that an opening reveals; empty if the opening is."""
    return opening[:SECRET_BYTES]


def _hash(secret: bytes, purpose: Purpose) -> ContentId:
    return content_id(b"distro-node %s secret\0" % purpose.encode("ascii") + secret)


def _commitment(beacon_hash: bytes, audit_hash: bytes) -> ContentId:
    return content_id(b"distro-node commitment\0" + beacon_hash + audit_hash)
