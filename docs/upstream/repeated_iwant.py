"""An IWANT that names one message 10,000 times is answered with 10,000 copies.

`GossipSub.handle_iwant` looks every id up as often as it is there: a message of 30 bytes in the
request is one of up to a MiB in the answer, as long as it is in the cache. The patch answers each
id once.
"""

from __future__ import annotations

from typing import Any

import common
import trio
from libp2p.pubsub.pb import rpc_pb2


async def fault() -> bool:
    """Ask for one message 1,000 times, and count what is queued for sending."""
    async with common.gossiping_pair() as (client, server):
        await server.pubsub.publish("t", b"message")
        router: Any = server.pubsub.router
        with trio.fail_after(5):
            while not router.mcache.window("t"):  # noqa: ASYNC110  (there is no event for it)
                await trio.sleep(0.01)
        sent: list[int] = []
        router.send_rpc = lambda peer, rpc, **_: sent.append(len(rpc.publish))
        asked = rpc_pb2.ControlIWant(messageIDs=router.mcache.window("t") * 1000)
        await router.handle_iwant(asked, client.get_id())
        return sum(sent) > 1


if __name__ == "__main__":
    common.report(fault)
