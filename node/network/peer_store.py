"""The library's address book, which here knows our own keys and nobody else.

The library writes into it whatever peers say of themselves and of others, throws out entries at a
thousand peers (its own identity among them), and dials what it finds there. `introductions` knows whom
to dial, and where; so nothing that a peer says is written down here, and nothing is thrown out.
"""

from __future__ import annotations

from typing import Any

from libp2p.crypto.keys import PrivateKey, PublicKey
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore


class OwnKeys(PeerStore):
    """A `PeerStore` for the keys of `own`; what it is told of others it forgets at once."""

    def __init__(self, own: ID) -> None:
        super().__init__()
        self._own = own

    def _forget(self, *told: Any, **more: Any) -> Any:
        # A signed record is welcome all the same.
        return True

    # What a peer says of itself and of others, and that its keys are to go, which would be our own too.
    add_addrs = add_protocols = set_protocols = put = record_latency = _forget
    consume_peer_record = clear_peerdata = clear_keydata = _forget

    def add_pubkey(self, peer_id: ID, pubkey: PublicKey) -> None:
        """Keep our own public key."""
        if peer_id == self._own:
            super().add_pubkey(peer_id, pubkey)

    def add_privkey(self, peer_id: ID, privkey: PrivateKey) -> None:
        """Keep our own private key."""
        if peer_id == self._own:
            super().add_privkey(peer_id, privkey)
