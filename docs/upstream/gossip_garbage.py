"""Six bytes that are no RPC end the peer's pubsub, and its host.

`Pubsub.continuously_read_stream` lets the parser's `DecodeError` out, and nobody catches it. The
patch treats it as `stream_handler` treats other streams that are of no use.
"""

from __future__ import annotations

from typing import Any

import common


async def fault() -> bool:
    """Send garbage on a gossip stream, and see whether the host is still there."""

    async def attack(client: Any, server: Any) -> None:
        await client.pubsub.peers[server.get_id()].write(b"\x05\xff\xff\xff\xff\xff")

    return await common.ends(common.gossiping_pair, attack)


if __name__ == "__main__":
    common.report(fault)
