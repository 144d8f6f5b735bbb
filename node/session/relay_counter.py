"""The count of bytes that a node relays for others, kept up to date on the disk."""

from __future__ import annotations

import trio

from ..network.network import Network
from ..storage.relayed_bytes import RelayedBytes

_KEEP_SECONDS = 60.0


def counted(network: Network, carried: RelayedBytes) -> int:
    """Add the bytes relayed since the last call, and return the total over all starts of the node."""
    carried.note(network.relayed_bytes())
    return carried.total


async def keep_count(network: Network, carried: RelayedBytes) -> None:
    """Store the count once a minute for ever, and once more at the end."""
    try:
        while True:
            await trio.sleep(_KEEP_SECONDS)
            counted(network, carried)
            await trio.to_thread.run_sync(carried.keep)
    finally:
        # The node is ending: blocking its event loop harms nothing any more.
        counted(network, carried)
        carried.keep()
