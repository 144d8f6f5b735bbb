"""The library's address book, which here knows our own keys and nobody else.

The library writes into it whatever peers say of themselves and of others, throws out entries at a
thousand peers (its own identity among them), and dials what it finds there. Whom to dial, and where, is
for `introductions` to know; so nothing that a peer says is written down here, and nothing is thrown out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from libp2p.crypto.keys import PrivateKey, PublicKey
from libp2p.peer.envelope import Envelope
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore
from multiaddr import Multiaddr


class OwnKeys(PeerStore):
    """A `PeerStore` for the keys of `own`; what it is told of others it forgets at once."""

    def __init__(self, own: ID) -> None:
        super().__init__()
        self._own = own

    def add_addrs(self, peer_id: ID, addrs: Sequence[Multiaddr], ttl: int = 0) -> None:
        """Forget addresses."""

    def consume_peer_record(self, envelope: Envelope, ttl: int) -> bool:
        """Forget a signed record, and call it welcome."""
        return True

    def add_protocols(self, peer_id: ID, protocols: Sequence[str]) -> None:
        """Forget protocols."""

    def set_protocols(self, peer_id: ID, protocols: Sequence[str]) -> None:
        """Forget protocols."""

    def put(self, peer_id: ID, key: str, val: Any) -> None:
        """Forget metadata."""

    def record_latency(self, peer_id: ID, RTT: float) -> None:
        """Forget round-trip times."""

    def clear_peerdata(self, peer_id: ID) -> None:
        """Keep our own keys."""

    def clear_keydata(self, peer_id: ID) -> None:
        """Keep our own keys."""

    def add_pubkey(self, peer_id: ID, pubkey: PublicKey) -> None:
        """Keep our own public key."""
        if peer_id == self._own:
            super().add_pubkey(peer_id, pubkey)

    def add_privkey(self, peer_id: ID, privkey: PrivateKey) -> None:
        """Keep our own private key."""
        if peer_id == self._own:
            super().add_privkey(peer_id, privkey)
