"""A peer that answers no negotiation keeps a task of pubsub for each of its connections.

Each `connected` starts `_handle_new_peer_with_retry`, which goes on with the next connection when
one ends. A task of a service may have a thousand children; the next one ends pubsub and the host.
The patch starts one for each peer.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import common
import trio
import trio.testing
from libp2p.tools.anyio_service import background_trio_service


async def fault() -> bool:
    """Register a silent peer three times, and see whether that takes more than one task."""
    async with AsyncExitStack() as stack:
        silent, server = await stack.enter_async_context(common.pair())
        pubsub = common.make_pubsub(server)
        await stack.enter_async_context(background_trio_service(pubsub))
        await pubsub.wait_until_ready()
        negotiating = 0

        async def never(peer: Any, protocols: Any) -> None:
            nonlocal negotiating
            negotiating += 1
            await trio.sleep_forever()

        server.new_stream = never
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(pubsub._handle_new_peer_with_retry, silent.get_id())
            await trio.testing.wait_all_tasks_blocked(0.05)
            nursery.cancel_scope.cancel()
        return negotiating > 1


if __name__ == "__main__":
    common.report(fault)
