"""Keeping the count of what a node carries between others."""

from __future__ import annotations

import trio

from .network.network import Network
from .storage.carried import Carried

_KEEP_SECONDS = 60.0


def counted(network: Network, carried: Carried) -> int:
    """How many bytes it is by now, over all starts."""
    carried.note(network.carried_bytes())
    return carried.total


async def keep_count(network: Network, carried: Carried) -> None:
    """Keep the count on the disk, for ever, and in the end."""
    try:
        while True:
            await trio.sleep(_KEEP_SECONDS)
            counted(network, carried)
            await trio.to_thread.run_sync(carried.keep)
    finally:
        # The node is ending; nobody waits for its loop any more.
        counted(network, carried)
        carried.keep()
