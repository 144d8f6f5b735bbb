"""A peer makes us remember topics of any length.

`Pubsub.handle_subscription` bounds how many topics a peer may name, but not how long they are: a
hundred of a MiB each. The patch bounds their length.
"""

from __future__ import annotations

import common
from libp2p.pubsub.pb import rpc_pb2


async def fault() -> bool:
    """Subscribe to a topic of 100,000 characters, and see whether it is kept."""
    async with common.gossiping_pair() as (client, server):
        subscription = rpc_pb2.RPC.SubOpts(subscribe=True, topicid="x" * 100_000)
        server.pubsub.handle_subscription(client.get_id(), subscription)
        return any(len(topic) == 100_000 for topic in server.pubsub.peer_topics)


if __name__ == "__main__":
    common.report(fault)
