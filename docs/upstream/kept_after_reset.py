"""The bytes that a stream had received stay in memory for a minute after it was reset.

`YamuxStream.reset` keeps unread data for a reader, as `close` does; but after a reset nobody may
read. The patch drops it.
"""

from __future__ import annotations

from typing import Any

import common
from libp2p.custom_types import TProtocol


async def fault() -> bool:
    """Reset a stream with unread data, and see whether it is kept."""

    async def send_much(stream: Any) -> None:
        await stream.write(bytes(100_000))
        await stream.write(b"and wait")

    async with common.pair() as (client, server):
        server.set_stream_handler(TProtocol("/much"), send_much)
        stream = await client.new_stream(server.get_id(), [TProtocol("/much")])
        await stream.read(1)
        await common.answers(client, server)
        await stream.reset()
        return any(map(len, stream.muxed_conn.stream_buffers.values()))


if __name__ == "__main__":
    common.report(fault)
