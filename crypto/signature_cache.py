"""Cache of verified signatures: each signature is checked once, however often it is seen.

A signed message reaches a node several times: by gossip, in answers to sync requests, and inside
proposals, ledger entries, certificates and evidence. The bytes that its sender signed are the same each
time, so one Ed25519 check is enough.

Only valid signatures are remembered, under a hash of everything that makes them valid: kind, swarm,
sender, body and the signature itself. So an invalid signature never benefits from a valid one, and
cannot fill the cache. A peer that floods a node with validly signed messages can at most evict the
entries of others, whose signatures are then checked again. Nothing is written to disk: after a restart
the cache is empty.
"""

from __future__ import annotations

from collections import OrderedDict

from .envelope import Verify, signing_bytes, verify_detached
from .hashing import ContentId, content_id
from .identity import PEER_ID_BYTES, SIGNATURE_BYTES, PeerId

MOST_SIGNATURES = 1 << 14
"""Signatures that are remembered, about 4 MB. A thousand members send four messages each per round, and
a signature is needed until the record of the next round, which names witnesses."""


class SignatureCache:
    """Cache in front of a signature check. Safe to use from several threads."""

    def __init__(self, verify: Verify = verify_detached, most: int = MOST_SIGNATURES) -> None:
        self._verify = verify
        self._most = most
        # In order of last use. Each call of an `OrderedDict` method is atomic, so threads that verify at
        # the same time need no lock; at worst both check the same signature.
        self._valid: OrderedDict[ContentId, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._valid)

    def verify(
        self, kind: str, swarm: bytes, sender: PeerId, body: bytes, signature: bytes
    ) -> bool:
        """Whether `signature` is the one of `sender` for an envelope of these fields, as
        `verify_detached` checks it."""
        key = _key(kind, swarm, sender, body, signature)
        if key is None:
            return False
        try:
            self._valid.move_to_end(key)
        except KeyError:
            pass
        else:
            return True
        if not self._verify(kind, swarm, sender, body, signature):
            return False
        self._valid[key] = None
        if len(self._valid) > self._most:
            self._valid.popitem(last=False)
        return True


def _key(
    kind: str, swarm: bytes, sender: PeerId, body: bytes, signature: bytes
) -> ContentId | None:
    """Return a hash of the fields; None if no envelope can hold them.

    Sender and signature have fixed lengths, and `signing_bytes` differs for different triples, so
    different fields never give the same input of the hash.
    """
    if len(sender) != PEER_ID_BYTES or len(signature) != SIGNATURE_BYTES:
        return None
    try:
        message = signing_bytes(kind, swarm, body)
    except ValueError:
        return None
    return content_id(b"".join((sender, signature, message)))
