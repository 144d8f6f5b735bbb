"""An exception in a stream handler ends the host.

What a handler raises leaves `BasicHost._swarm_stream_handler`, ends the task of the connection, and
with it the service of the swarm. The patch resets the stream and logs.
"""

from __future__ import annotations

import contextlib
from typing import Any

import common
from libp2p.custom_types import TProtocol


async def fault() -> bool:
    """Open a stream to a handler that raises, and see whether the host is still there."""

    async def explode(stream: Any) -> None:
        raise ValueError("from the handler")

    async def attack(client: Any, server: Any) -> None:
        server.set_stream_handler(TProtocol("/explode"), explode)
        # The stream may be gone before we have it; either way the handler has run.
        with contextlib.suppress(Exception):
            await client.new_stream(server.get_id(), [TProtocol("/explode")])

    return await common.ends(common.pair, attack)


if __name__ == "__main__":
    common.report(fault)
