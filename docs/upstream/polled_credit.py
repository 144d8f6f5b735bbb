"""A writer without credit looks for it a hundred times a second.

`YamuxStream.write` polls its window every 10 ms. Hundreds of streams that wait for slow readers
keep a processor busy with nothing. The patch sleeps until a window update, or the end of the
stream, comes.
"""

from __future__ import annotations

from typing import Any

import common
import trio
import trio.testing
from libp2p.custom_types import TProtocol


async def fault() -> bool:
    """Use up a window, and see whether anything still moves."""

    async def deaf(stream: Any) -> None:
        await trio.sleep_forever()

    async with common.pair() as (client, server), trio.open_nursery() as nursery:
        server.set_stream_handler(TProtocol("/deaf"), deaf)
        stream = await client.new_stream(server.get_id(), [TProtocol("/deaf")])
        nursery.start_soon(_write_in_vain, stream)
        with trio.move_on_after(3) as scope:
            while stream.muxed_stream.send_window:  # noqa: ASYNC110  (whenever it is used up)
                await trio.sleep(0.01)
            # For ten times the pause of a poll.
            await trio.testing.wait_all_tasks_blocked(0.1)
        nursery.cancel_scope.cancel()
    return scope.cancelled_caught


async def _write_in_vain(stream: Any) -> None:
    # More than the largest window.
    await stream.write(bytes(20 << 20))


if __name__ == "__main__":
    common.report(fault)
