"""A message with a key that does not parse, or whose validator raises, ends the peer's pubsub.

`Pubsub.push_msg` runs as a task of the service, and what it raises ends the service: the key of a
message is parsed before its signature is checked, so anybody can do this. The patch drops the
message.
"""

from __future__ import annotations

from typing import Any

import common
from libp2p.pubsub.pb import rpc_pb2


async def fault() -> bool:
    """Do both, and see whether the host is still there."""

    async def bad_key(client: Any, server: Any) -> None:
        message = rpc_pb2.Message(data=b"x", topicIDs=["t"], seqno=bytes(8), signature=b"s")
        message.from_id = b"\x12\x20" + bytes(32)
        message.key = b"\xff\xffgarbage"
        client.pubsub.peer_queues[server.get_id()].push(rpc_pb2.RPC(publish=[message]))

    def explode(forwarder: Any, message: Any) -> bool:
        raise ValueError("from the validator")

    async def raising_validator(client: Any, server: Any) -> None:
        server.pubsub.set_topic_validator("t", explode, False)
        await client.pubsub.publish("t", b"x")

    outcomes = [
        await common.ends(common.gossiping_pair, attack) for attack in (bad_key, raising_validator)
    ]
    return any(outcomes)


if __name__ == "__main__":
    common.report(fault)
