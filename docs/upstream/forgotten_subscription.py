"""A gossip stream that breaks and is replaced costs the peer its subscriptions.

When our stream to a peer breaks while the connection holds, `Pubsub._handle_dead_peer` forgets what
the peer has subscribed to, and opens a new stream. The peer, whose own stream is in order, does not
say it again and never gets another message from us. The patch keeps the subscriptions of a
connected peer.
"""

from __future__ import annotations

import common


async def fault() -> bool:
    """Lose a stream, wait for its successor, and see whether the subscription is still known."""
    async with common.gossiping_pair() as (client, server):
        client.pubsub._handle_dead_peer(server.get_id())
        await client.pubsub.wait_for_peer(server.get_id())
        await common.answers(client, server)
        return server.get_id() not in client.pubsub.peer_topics.get("t", ())


if __name__ == "__main__":
    common.report(fault)
