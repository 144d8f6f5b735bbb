"""One member of an exchange: the daemon's network, blob store, gossip and relays, without a trainer.

It makes an update with the real codec from random positions and signs, connects to its peers, and at
"go" announces it and fetches the others' updates. It communicates with `exchange` in JSON lines. It
does not decode what it fetched: thirty-two computers would do that at the same time, two cores
cannot.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import trio
from distro_node.crypto.envelope import open_envelope, sign
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.crypto.identity import Identity, PeerId, peer_text
from distro_node.node.network.errors import DialError
from distro_node.node.network.exchange.blobs import BlobFetcher, FetchFailed, serve_blobs
from distro_node.node.network.exchange.update_relay_client import Relays
from distro_node.node.network.network import Network, NetworkSettings, open_network
from distro_node.node.storage.blob_store import BlobStore
from distro_node.protocol.codec.update import encode_update, update_layout
from distro_node.protocol.wire.encoding import encode
from distro_node.protocol.wire.manifest import ParameterSpec, SwarmId
from distro_node.protocol.wire.messages import Announcement, RecordId, decode_message
from distro_node.protocol.wire.relay_requests import relay_request

PORT = 4001
_SWARM = SwarmId(content_id(b"exchange"))
_TOPIC = f"distro/{_SWARM.hex()}"
_TOP_K = 7
_CHUNK = 64
# With even positions: log2 C(4096, 7) bits per block, and a sign for each coefficient.
_BYTES_PER_BLOCK = 9.8
_RETRY_SECONDS = 1.0
# With fewer, gossip looks for more.
_MESH_PEERS = 4
_FETCH_SECONDS = 600.0


def identity(number: int) -> Identity:
    """Return the same identity for a member's number in every run."""
    return Identity.from_seed(content_id(b"member %d" % number))


def multiaddr(host: str, peer: PeerId) -> str:
    """Return the multiaddr of a peer at this address."""
    return f"/ip4/{host}/tcp/{PORT}/p2p/{peer_text(peer)}"


def draw_update(number: int, size: int) -> bytes:
    """Return an update of about `size` bytes, encoded by the codec from random positions and signs."""
    blocks = max(1, round(size / _BYTES_PER_BLOCK))
    parameter = ParameterSpec(name="w", shape=(_CHUNK * blocks, _CHUNK))
    layout = update_layout([parameter], _CHUNK, _TOP_K)
    draw = np.random.default_rng(number)
    steps = np.sort(draw.integers(0, _CHUNK**2 - _TOP_K + 1, (blocks, _TOP_K)), axis=1)
    positions = (steps + np.arange(_TOP_K)).astype(np.int32)
    signs = draw.choice(np.array([-1, 1], dtype=np.int8), (blocks, _TOP_K))
    return encode_update(layout, [positions], [signs])


class Exchange:
    """One member's part."""

    def __init__(self, network: Network, number: int, members: int, folder: Path) -> None:
        self._network = network
        self._identity = identity(number)
        self._peers = [identity(other).peer for other in range(members) if other != number]
        self._store = BlobStore(folder)
        self._relays = Relays(network)
        self._fetcher = BlobFetcher(network, self._store, self._relays)
        self.held: dict[PeerId, int] = {}
        self.done = trio.Event()

    async def run(
        self, number: int, size: int, addresses: list[str], connections: int, relays: int
    ) -> None:
        """Take part: dial these addresses, wait for `connections` connections, exchange."""
        body = draw_update(number, size)
        update = self._store.put(body)
        serve_blobs(self._network, self._store, kind_of=lambda cid: "update", relays=self._relays)
        received = await self._network.subscribe(_TOPIC, lambda sender, data: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._relays.run)
            nursery.start_soon(self._receive, received, nursery)
            for address in addresses:
                nursery.start_soon(self._connect, address)
            while not self._is_settled(connections, relays):  # noqa: ASYNC110  (there is no event)
                await trio.sleep(0.1)
            report(ready=True, bytes=len(body))
            lines = trio.wrap_file(sys.stdin)
            assert (await lines.readline()).strip() == "go"
            nursery.start_soon(self._announce, update, len(body), nursery)
            busy = time.process_time()
            began = time.monotonic()
            await self.done.wait()
            report(
                began=began,
                ended=time.monotonic(),
                processor_seconds=time.process_time() - busy,
                received=self._network.traffic.received,
                sent=self._network.traffic.sent,
                received_update_bytes=sum(self.held.values()),
            )
            # Other members may still need its blobs.
            await lines.readline()
            os._exit(0)

    def _is_settled(self, connections: int, relays: int) -> bool:
        network = self._network
        # Gossip's mesh grows once a second, and a message published before that reaches no peer.
        mesh = network.gossip.router.mesh.get(_TOPIC, ())
        return (
            len(network.connected()) >= connections
            and len(self._relays) >= relays
            and len(mesh) >= min(_MESH_PEERS, connections - relays)
        )

    async def _connect(self, address: str) -> None:
        while True:
            try:
                await self._network.connect(address, timeout=20.0)
                return
            except DialError:
                await trio.sleep(_RETRY_SECONDS)

    async def _announce(self, update: ContentId, size: int, nursery: trio.Nursery) -> None:
        said = Announcement(1, RecordId(bytes(32)), update, size, 1, 1.0, 1)
        envelope = sign(self._identity, "announcement", _SWARM, encode(said))
        sealed = envelope.encode()
        offered = relay_request(_SWARM, self._identity.peer, said, envelope.signature)
        nursery.start_soon(self._relays.offer, offered)
        while True:
            await self._network.publish(_TOPIC, sealed)
            # Gossip may lose it; members of a swarm request from each other what they miss.
            await trio.sleep(30.0)

    async def _receive(
        self, received: trio.MemoryReceiveChannel[tuple[PeerId, bytes]], nursery: trio.Nursery
    ) -> None:
        async for _, data in received:
            envelope = open_envelope(data, swarm=_SWARM)
            message = decode_message(envelope)
            assert isinstance(message, Announcement)
            if envelope.sender not in self.held:
                self.held[envelope.sender] = 0
                nursery.start_soon(self._fetch, envelope.sender, message, envelope.signature)

    async def _fetch(self, author: PeerId, said: Announcement, signature: bytes) -> None:
        while True:
            try:
                body = await self._fetcher.fetch(
                    said.update,
                    max_bytes=said.size,
                    providers=lambda: [author, *(p for p in self._peers if p != author)],
                    kind="update",
                    timeout=_FETCH_SECONDS,
                    relay=relay_request(_SWARM, author, said, signature),
                )
                break
            except FetchFailed:
                continue
        self.held[author] = len(body)
        if len(self.held) == len(self._peers) and all(self.held.values()):
            self.done.set()


def report(**facts: Any) -> None:
    """Send a message to `exchange`."""
    print(json.dumps(facts), flush=True)


async def main() -> None:
    """Take part in the exchange that standard input describes."""
    plan = json.loads(sys.stdin.readline())
    number, hosts = plan["number"], plan["hosts"]
    settings = NetworkSettings(listen=(f"/ip4/{hosts[number]}/tcp/{PORT}",))
    near, relays = plan["neighbours"], plan["relays"]
    # Later members dial earlier ones.
    dials = [multiaddr(hosts[other], identity(other).peer) for other in near if other < number]
    async with open_network(settings, identity(number)) as network:
        exchange = Exchange(network, number, len(hosts), Path(plan["folder"]))
        connections = len(near) + len(relays)
        await exchange.run(number, plan["bytes"], [*dials, *relays], connections, len(relays))


if __name__ == "__main__":
    trio.run(main)
