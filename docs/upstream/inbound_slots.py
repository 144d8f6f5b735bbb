"""A host that has been called as often as it may have connections takes no more calls.

`Swarm._do_handle_inbound_connection` keeps the slot of a connection until the swarm ends, not until
the connection does. After `max_connections` visitors the host is deaf for good. The patch waits for
the end of the connection.
"""

from __future__ import annotations

import common
import trio
from libp2p.network.config import ConnectionConfig


async def fault() -> bool:
    """Call a host that takes two connections three times, one after the other."""
    server = common.make_host(2)
    network = server.get_network()
    network.connection_config = ConnectionConfig(
        max_connections=2, high_watermark=2, low_watermark=0, min_connections=0
    )
    network._init_connection_management()
    server.set_stream_handler(common.ECHO, common.echo)
    async with server.run(common.LISTEN):
        for number in range(3):
            client = common.make_host(10 + number)
            async with client.run(common.LISTEN):
                try:
                    with trio.fail_after(5):
                        await common.connect(client, server)
                except Exception:
                    return True
                await client.disconnect(server.get_id())
            with trio.fail_after(5):
                while network.get_connections():  # noqa: ASYNC110  (there is no event for it)
                    await trio.sleep(0.01)
    return False


if __name__ == "__main__":
    common.report(fault)
