"""A peer that sends what no honest one would, through the library's own interface."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from distro_node.crypto.identity import Identity
from distro_node.node.network.addresses import id_of
from distro_node.node.network.network import Network, open_network
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.custom_types import TProtocol
from libp2p.peer.envelope import seal_record
from libp2p.peer.id import ID
from libp2p.peer.peer_record import PeerRecord
from libp2p.pubsub.pb import rpc_pb2
from libp2p.utils.varint import encode_uvarint
from multiaddr import Multiaddr
from network.support import LOOPBACK, until

# Private here: `_host`: a stranger obeys none of a node's own bounds.

GOSSIP = TProtocol("/meshsub/1.1.0")


class Hostile:
    """A hostile peer connected to a victim, with a gossip stream that it writes itself."""

    def __init__(self, network: Network, victim: Network, stream: Any, who: Identity) -> None:
        self.network = network
        self.identity = who
        self.victim = victim
        self.id = id_of(network.peer)
        self._stream = stream

    @property
    def muxer(self) -> Any:
        """The muxer of its connection to the victim."""
        return self._stream.muxed_conn

    async def open(self, protocol: str) -> Any:
        """Open a stream to the victim."""
        peer = self._stream.muxed_conn.peer_id
        return await self.network._host.new_stream(peer, [TProtocol(protocol)])

    async def send_rpc(self, rpc: rpc_pb2.RPC) -> None:
        """Send one gossip message with any content."""
        data = rpc.SerializeToString()
        await self._stream.write(encode_uvarint(len(data)) + data)

    async def subscribe(self, topic: str) -> None:
        """Subscribe to a topic, and wait until the victim has received it."""
        rpc = rpc_pb2.RPC()
        rpc.subscriptions.add(subscribe=True, topicid=topic)
        await self.send_rpc(rpc)
        await self.wait_until_read()

    async def wait_until_read(self) -> None:
        """Wait until the victim has read everything sent so far."""
        mark = f"mark-{secrets.token_hex(4)}"
        for subscribe in (True, False):
            rpc = rpc_pb2.RPC()
            rpc.subscriptions.add(subscribe=subscribe, topicid=mark)
            await self.send_rpc(rpc)
            await until(lambda subscribe=subscribe: self._knows(mark) is subscribe)

    def _knows(self, topic: str) -> bool:
        return topic in self.victim.gossip.pubsub.peer_topics


@asynccontextmanager
async def hostile(
    victim: Network, who: Identity | None = None, *, offers_gossip: bool = True
) -> AsyncIterator[Hostile]:
    """Open a hostile peer that is connected to a victim, under a new name or this one. Unless it
    `offers_gossip`, the victim can open no gossip stream to it."""
    who = who or Identity.generate()
    async with open_network(LOOPBACK, who) as network:
        if not offers_gossip:
            del network._host.get_mux().handlers[GOSSIP]
        peer = await network.connect(victim.addresses[0])
        stream = await network._host.new_stream(id_of(peer), [GOSSIP])
        yield Hostile(network, victim, stream, who)


def invented(port: int) -> tuple[ID, bytes]:
    """Return an invented peer, and its signed record with a port of this machine."""
    keys = create_new_key_pair(secrets.token_bytes(32))
    peer = ID.from_pubkey(keys.public_key)
    record = PeerRecord(peer, [Multiaddr(f"/ip4/127.0.0.1/tcp/{port}")])
    return peer, seal_record(record, keys.private_key).marshal_envelope()
