"""A write that is cancelled halfway breaks the connection for everybody.

`Yamux._write_frame` may be cancelled between the encryption and the last byte of a message. The two
ends of Noise are out of step from then on, and every stream of the connection dies: a timeout
around one write is enough. The patch finishes a frame that has begun.
"""

from __future__ import annotations

from typing import Any

import common
import trio


async def fault() -> bool:
    """Cancel a write between its two halves, and see whether the connection still works."""
    async with common.pair() as (client, server):
        (connection,) = client.get_network().get_connections(server.get_id())
        socket: Any = connection.muxed_conn.secured_conn.conn.read_writer.read_write_closer.stream
        stream = await client.new_stream(server.get_id(), [common.ECHO])
        original = socket.write

        with trio.move_on_after(60) as scope:

            async def write_halfway(data: bytes) -> None:
                socket.write = original
                await original(data[: len(data) // 2])
                scope.cancel()
                await trio.sleep(0.01)
                await original(data[len(data) // 2 :])

            socket.write = write_halfway
            await stream.write(b"y")
        return not await common.answers(client, server)


if __name__ == "__main__":
    common.report(fault)
