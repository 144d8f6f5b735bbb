"""A window update goes out after every read.

`YamuxStream._auto_tune_and_send_window_update` waits for half a window, as the reference does, and
then grants whatever is below that all the same: an update of 12 bytes, a message of the encryption
and a system call for each read. The patch waits.
"""

from __future__ import annotations

from typing import Any

import common
from libp2p.custom_types import TProtocol
from libp2p.stream_muxer.yamux.yamux import YamuxStream

SIZE = 1_000_000


async def fault() -> bool:
    """Read a million bytes 4,000 at a time, and count the updates."""
    updates = 0
    real: Any = YamuxStream.send_window_update

    async def counting(self: Any, increment: int, skip_lock: bool = False) -> None:
        nonlocal updates
        updates += 1
        await real(self, increment, skip_lock)

    async def send(stream: Any) -> None:
        await stream.write(bytes(SIZE))

    async with common.pair() as (client, server):
        server.set_stream_handler(TProtocol("/send"), send)
        stream = await client.new_stream(server.get_id(), [TProtocol("/send")])
        YamuxStream.send_window_update = counting
        try:
            got = 0
            while got < SIZE:
                got += len(await stream.read(4000))
        finally:
            YamuxStream.send_window_update = real
    return updates > 20


if __name__ == "__main__":
    common.report(fault)
