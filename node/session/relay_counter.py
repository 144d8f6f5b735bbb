"""The count of bytes that a node relays for others, kept current on the disk."""

from __future__ import annotations

import trio

from ..network.network import Network
from ..storage.relayed_bytes import RelayedBytes

_STORE_INTERVAL_SECONDS = 60.0


def update_relayed_count(network: Network, relayed: RelayedBytes) -> int:
    """Add the bytes relayed since the last call, and return the total over all starts of the node."""
    relayed.note(network.relayed_bytes())
    return relayed.total


async def store_relayed_count(network: Network, relayed: RelayedBytes) -> None:
    """Store the count once a minute for ever, and once more at the end."""
    try:
        while True:
            await trio.sleep(_STORE_INTERVAL_SECONDS)
            update_relayed_count(network, relayed)
            await trio.to_thread.run_sync(relayed.keep)
    finally:
        # The node is ending: blocking its event loop harms nothing any more.
        update_relayed_count(network, relayed)
        relayed.keep()
