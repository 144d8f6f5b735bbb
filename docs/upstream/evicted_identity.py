"""A thousand peers that are merely named push a host's own keys out of its peer store.

`PeerStore._enforce_peer_limit` throws out entries without addresses first, and the host's own entry
has none. From then on `get_public_key` raises `PeerStoreError`: publishing fails, and with it
whatever service does it. The patch keeps the entries with a private key.
"""

from __future__ import annotations

import common
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStoreError


async def fault() -> bool:
    """Name 1,001 peers, and ask a host for its own key."""
    host = common.make_host(1)
    for number in range(1001):
        peer = ID.from_pubkey(common.keys(10 + number).public_key)
        host.get_peerstore().add_addrs(peer, common.LISTEN, 100)
    try:
        host.get_public_key()
    except PeerStoreError:
        return True
    return False


if __name__ == "__main__":
    common.report(fault)
