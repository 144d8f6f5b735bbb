"""The address book of libp2p, which here contains this node's keys only.

libp2p stores in it everything that peers claim about themselves and others, evicts entries at a thousand
peers (this node's among them), and dials the addresses in it. `introductions` decides which peers to
dial, and where; so nothing that peers send is stored here, and nothing is evicted.
"""

from __future__ import annotations

from typing import Any

from libp2p.crypto.keys import PrivateKey, PublicKey
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore


class OwnKeyStore(PeerStore):
    """A `PeerStore` that keeps the keys of `own`, this node, and discards everything else."""

    def __init__(self, own: ID) -> None:
        super().__init__()
        self._own = own

    def _discard(self, *arguments: Any, **options: Any) -> Any:
        # True, because a signed record must seem accepted.
        return True

    # Discarded: claims of peers about themselves and others, and the removal of keys, which could remove
    # our own.
    add_addrs = add_protocols = set_protocols = put = record_latency = _discard
    consume_peer_record = clear_peerdata = clear_keydata = _discard

    def add_pubkey(self, peer_id: ID, pubkey: PublicKey) -> None:
        """Keep our own public key."""
        if peer_id == self._own:
            super().add_pubkey(peer_id, pubkey)

    def add_privkey(self, peer_id: ID, privkey: PrivateKey) -> None:
        """Keep our own private key."""
        if peer_id == self._own:
            super().add_privkey(peer_id, privkey)
