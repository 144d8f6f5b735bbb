"""A peer that ignores its send window fills our memory.

`Yamux.handle_incoming` logs a warning when a stream's window is exceeded, sets it to zero and goes
on buffering. The patch ends the stream.
"""

from __future__ import annotations

import struct
from typing import Any

import common
import trio
from libp2p.custom_types import TProtocol
from libp2p.stream_muxer.yamux.yamux import TYPE_DATA, YAMUX_HEADER_FORMAT


async def fault() -> bool:
    """Send 18 MB on a stream that nobody reads, and see whether they are kept."""

    async def ignore(stream: Any) -> None:
        await trio.sleep_forever()

    async with common.pair() as (client, server):
        server.set_stream_handler(TProtocol("/ignore"), ignore)
        stream = await client.new_stream(server.get_id(), [TProtocol("/ignore")])
        mine = stream.muxed_conn
        theirs = server.get_network().get_connections(client.get_id())[0].muxed_conn
        header = struct.pack(
            YAMUX_HEADER_FORMAT, 0, TYPE_DATA, 0, stream.muxed_stream.stream_id, 60_000
        )
        for _ in range(300):
            await mine._write_frame(header + bytes(60_000))
        # An answer on the same connection comes after all of that has been read.
        await common.answers(client, server)
        return sum(len(buffer) for buffer in theirs.stream_buffers.values()) > 1_000_000


if __name__ == "__main__":
    common.report(fault)
