"""A reset that is cancelled while others use the line is never said, and the other side waits on.

`YamuxStream.reset` waits for the line like everybody else, and whoever gives a stream up is often
cancelled meanwhile. The patch lets it finish, for five seconds at most.
"""

from __future__ import annotations

import contextlib
from typing import Any

import common
import trio
import trio.testing
from libp2p.custom_types import TProtocol


async def fault() -> bool:
    """Cancel a reset that waits for the line, and see whether the other side hears of it."""
    ended = trio.Event()

    async def wait(stream: Any) -> None:
        with contextlib.suppress(Exception):
            await stream.read(1)
            await stream.read(1)
        ended.set()

    async with common.pair() as (client, server):
        server.set_stream_handler(TProtocol("/wait"), wait)
        stream = await client.new_stream(server.get_id(), [TProtocol("/wait")])
        await stream.write(b"x")
        async with trio.open_nursery() as nursery, stream.muxed_conn._write_lock:
            nursery.start_soon(stream.reset)
            await trio.testing.wait_all_tasks_blocked(0.05)
            nursery.cancel_scope.cancel()
        await common.answers(client, server)
        with trio.move_on_after(5):
            await ended.wait()
        return not ended.is_set()


if __name__ == "__main__":
    common.report(fault)
