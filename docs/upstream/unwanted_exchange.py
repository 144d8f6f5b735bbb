"""A PRUNE with invented peers makes a host dial whomever it names.

`GossipSub.handle_prune` follows the peers in a PRUNE although `do_px` is off, for any topic, from
anybody whose score is not below zero: 16 dials a message, towards a third party, and 16 entries in
the peer store (see `evicted_identity`). The patch follows them only with `do_px`.
"""

from __future__ import annotations

import secrets
from typing import Any

import common
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.envelope import seal_record
from libp2p.peer.id import ID
from libp2p.peer.peer_record import PeerRecord
from libp2p.pubsub.pb import rpc_pb2
from multiaddr import Multiaddr


async def fault() -> bool:
    """Name somebody at the address of a third party, and see whether it is called."""
    called = trio.Event()

    async def note(stream: Any) -> None:
        called.set()
        await stream.aclose()

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    invented = create_new_key_pair(secrets.token_bytes(32))
    peer = ID.from_pubkey(invented.public_key)
    record = PeerRecord(peer, [Multiaddr(f"/ip4/127.0.0.1/tcp/{port}")])
    envelope = seal_record(record, invented.private_key).marshal_envelope()
    async with common.gossiping_pair() as (client, server), trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, note, listeners)
        rpc = rpc_pb2.RPC()
        prune = rpc.control.prune.add(topicID="t", backoff=1)
        prune.peers.add(peerID=peer.to_bytes(), signedPeerRecord=envelope)
        client.pubsub.peer_queues[server.get_id()].push(rpc)
        with trio.move_on_after(2):
            await called.wait()
        nursery.cancel_scope.cancel()
    return called.is_set()


if __name__ == "__main__":
    common.report(fault)
