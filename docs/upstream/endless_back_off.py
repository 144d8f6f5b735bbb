"""Every PRUNE is remembered, for any topic and any time, for ever.

`GossipSub.handle_prune` notes a time for the topic whether we are in it or not, a message may carry
megabytes of topics, and only `_check_back_off` for the very topic ever removes one: 1.2 GB in half
a minute from one peer. The patch ignores a PRUNE of a topic that we are not in.
"""

from __future__ import annotations

from typing import Any

import common
import trio.testing
from libp2p.pubsub.pb import rpc_pb2


async def fault() -> bool:
    """Send a PRUNE for a long topic, and see whether it is kept."""
    async with common.gossiping_pair() as (client, server):
        rpc = rpc_pb2.RPC()
        rpc.control.prune.add(topicID="x" * 100_000, backoff=10**9)
        client.pubsub.peer_queues[server.get_id()].push(rpc)
        await trio.testing.wait_all_tasks_blocked(0.05)
        await common.answers(client, server)
        router: Any = server.pubsub.router
        return any(len(topic) == 100_000 for topic in router.back_off)


if __name__ == "__main__":
    common.report(fault)
