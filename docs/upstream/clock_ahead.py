"""Whoever's clock was once ahead is not heard again.

Signed peer records carry the time as their sequence number. `maybe_consume_signed_record` calls a
record that is older than the last one invalid, and pubsub drops the message around it: after a
clock has been set right, for as long as it had been ahead. The patch takes an old record for what
it is: no news.
"""

from __future__ import annotations

from typing import Any

import common
import libp2p.pubsub.pubsub
from libp2p.peer.envelope import seal_record
from libp2p.peer.peer_record import PeerRecord
from libp2p.pubsub.pb import rpc_pb2


async def fault() -> bool:
    """Show a host two records of a peer, the newer one first."""
    pubsub: Any = libp2p.pubsub.pubsub
    host, peer = common.make_host(1), common.make_host(2)
    for seconds in (10**10, 10**9):
        record = PeerRecord(peer.get_id(), common.LISTEN, seq=seconds * 10**9)
        envelope = seal_record(record, peer.get_private_key()).marshal_envelope()
        rpc = rpc_pb2.RPC(senderRecord=envelope)
        if not pubsub.maybe_consume_signed_record(rpc, host, peer.get_id()):
            return True
    return False


if __name__ == "__main__":
    common.report(fault)
