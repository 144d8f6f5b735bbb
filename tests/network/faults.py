"""The faults of libp2p 0.8.1 that `distro_node.node.network` guards against, each shown by a program.

Most of them, from docs/upstream, could be fixed in the library; those where we want another behaviour
are here. Run as a program, it tries all of them and prints as JSON which appeared; with the argument
`guarded` in our hosts, with `patched` only those that a patch mends. Without `guarded` nothing of
distro_node is imported.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import trio
import trio.testing
from libp2p.custom_types import TProtocol
from libp2p.pubsub.pb import rpc_pb2
from libp2p.relay.circuit_v2 import CircuitV2Protocol
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, Status, StopMessage
from libp2p.relay.circuit_v2.pb.circuit_pb2 import PeerId as CircuitPeerId
from libp2p.relay.circuit_v2.protocol import PROTOCOL_ID as HOP
from libp2p.relay.circuit_v2.protocol import STOP_PROTOCOL_ID as STOP
from libp2p.relay.circuit_v2.utils import read_delimited_msg, write_delimited_msg
from libp2p.tools.anyio_service import background_trio_service

UPSTREAM = Path(__file__).parents[2] / "docs" / "upstream"
sys.path.insert(0, str(UPSTREAM))
common: Any = importlib.import_module("common")

GUARDED = "guarded" in sys.argv
PATCHED = sorted(path.stem for path in UPSTREAM.glob("*.py") if path.stem != "common")
"""Faults with a program and a patch of their own."""


async def unasked_dial() -> bool:
    """Opening a stream to a peer that has disconnected dials it."""
    async with common.pair() as (client, server):
        await client.get_network().close_peer(server.get_id())
        return await common.answers(client, server)


async def short_queue() -> bool:
    """Of a hundred messages at once most are dropped before they are sent."""
    async with common.gossiping_pair() as (client, server):
        queue = client.pubsub.peer_queues[server.get_id()]
        message = rpc_pb2.Message(data=b"x", topicIDs=["elsewhere"])
        return not all(queue.push(rpc_pb2.RPC(publish=[message])) for _ in range(100))


async def hoarded_streams() -> bool:
    """A peer may open any number of streams and send nothing on them."""
    async with common.pair() as (client, server):
        mine = client.get_network().get_connections(server.get_id())[0].muxed_conn
        for _ in range(200):
            await mine.open_stream()
        await common.answers(client, server)
        theirs = server.get_network().get_connections(client.get_id())[0]
        return len(theirs.muxed_conn.streams) >= 200


async def half_closed_streams() -> bool:
    """A stream that the peer does not end stays in the muxer's tables when its handler is done with
    it."""

    done: list[int] = []

    async def take(stream: Any) -> None:
        await stream.read(1)
        await stream.close()
        done.append(stream.muxed_stream.stream_id)

    async with common.pair() as (client, server):
        server.set_stream_handler(TProtocol("/take"), take)
        theirs = server.get_network().get_connections(client.get_id())[0].muxed_conn
        for _ in range(5):
            stream = await client.new_stream(server.get_id(), [TProtocol("/take")])
            await stream.write(b"xy")
        with trio.move_on_after(10.0):
            while len(done) < 5:  # noqa: ASYNC110 - a handler of the library sets no event
                await trio.sleep(0.01)
        await common.answers(client, server)
        # Only these streams: those that a connection begins with may still exist, or end meanwhile.
        return len(done) == 5 and all(number in theirs.streams for number in done)


@asynccontextmanager
async def relaying(host: Any) -> AsyncIterator[None]:
    """Make a running host a relay, the library's or ours."""
    if not GUARDED:
        async with background_trio_service(CircuitV2Protocol(host, allow_hop=True)):
            await trio.testing.wait_all_tasks_blocked(0.05)
            yield
        return
    from distro_node.node.network.addresses import id_of, peer_of
    from distro_node.node.network.circuit_relay import CircuitLimits, CircuitRelay
    from distro_node.node.network.rate_limits import Rate

    CircuitRelay(
        host,
        CircuitLimits(),
        open_stream=lambda peer, protocol: host.new_stream(id_of(peer), [TProtocol(protocol)]),
        connected=lambda: [
            peer for each in host.get_connected_peers() if (peer := peer_of(each)) is not None
        ],
        refuses=lambda peer: False,
        willing=lambda: True,
        knows=lambda peer: True,
        rates=(Rate(),),
    )
    yield


async def entangled_circuits() -> bool:
    """At a relay, the end of a peer's circuit to one other ends its circuit to a third."""

    async def take(stream: Any) -> None:
        await read_delimited_msg(stream, StopMessage)
        await write_delimited_msg(stream, StopMessage(type=StopMessage.STATUS, status=Status.OK))
        while True:
            await stream.write(await stream.read(10))

    async def ask(client: Any, relay: Any, message: HopMessage) -> Any:
        stream = await client.new_stream(relay.get_id(), [HOP])
        await write_delimited_msg(stream, message)
        assert (await read_delimited_msg(stream, HopMessage)).status == Status.OK
        return stream

    async with AsyncExitStack() as stack:
        relay, caller, *callees = (common.make_host(number) for number in (1, 2, 3, 4))
        for host in (relay, caller, *callees):
            await stack.enter_async_context(host.run(common.LISTEN))
        await stack.enter_async_context(relaying(relay))
        for host in (caller, *callees):
            host.set_stream_handler(STOP, take)
            await common.connect(host, relay)
        circuits: list[Any] = []
        for host in callees:
            await ask(host, relay, HopMessage(type=HopMessage.RESERVE))
            peer = CircuitPeerId(id=host.get_id().to_bytes())
            circuits.append(
                await ask(caller, relay, HopMessage(type=HopMessage.CONNECT, peer=peer))
            )
        for circuit in circuits:
            await circuit.write(b"x")
            assert await circuit.read(1) == b"x"
        await circuits[0].reset()
        # Without a timeout of its own: on a busy machine even an intact circuit is slow.
        try:
            # The library checks three times, with pauses, before it reports an end.
            for _ in range(80):
                await circuits[1].write(b"x")
                if await circuits[1].read(1) != b"x":
                    return True
                await trio.sleep(0.02)
        except Exception:
            return True
    return False


OURS: tuple[Callable[[], Awaitable[bool]], ...] = (
    unasked_dial,
    short_queue,
    hoarded_streams,
    half_closed_streams,
    entangled_circuits,
)
NAMES = [*PATCHED, *(fault.__name__ for fault in OURS)]


def use_ours() -> None:
    """Let the programs use our hosts instead of the library's."""
    from distro_node.crypto.identity import Identity
    from distro_node.node.network import library_patches
    from distro_node.node.network.gossip import Gossip
    from distro_node.node.network.host import build_host
    from distro_node.node.network.traffic import Traffic

    def make_host(number: int) -> Any:
        identity = Identity.from_seed(number.to_bytes(4, "big") * 8)
        return build_host(identity, max_connections=100)[0]

    def make_pubsub(host: Any) -> Any:
        return Gossip(host, Traffic(), lambda peer: False, lambda peer, reason: None).pubsub

    async def connect(client: Any, server: Any) -> None:
        # Our peer store keeps no address to dial later.
        await client.get_network().dial_addr(server.get_addrs()[0], server.get_id())

    library_patches.install()
    common.make_host, common.make_pubsub, common.connect = make_host, make_pubsub, connect


def main() -> None:
    """Try all faults and print which appeared."""
    if GUARDED:
        use_ours()
    faults = {name: importlib.import_module(name).fault for name in PATCHED}
    if "patched" not in sys.argv:
        faults |= {fault.__name__: fault for fault in OURS}
    results: dict[str, bool | str] = {}
    for name, fault in faults.items():
        try:
            results[name] = trio.run(fault)
        except BaseException as error:
            results[name] = f"neither: {error!r}"
    print(json.dumps(results))


if __name__ == "__main__":
    main()
