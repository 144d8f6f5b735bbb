"""The faults of libp2p 0.8.1 that `distro_node.node.network` guards against, most of them in `guards`.

Run as a program, it tries every one of them and prints as JSON which appeared; with the argument
`guarded` the guards are in place. Without it nothing of distro_node is imported.
"""

from __future__ import annotations

import contextlib
import json
import logging
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import libp2p.io.utils
import trio
import trio.testing
from libp2p import new_host
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.custom_types import TProtocol
from libp2p.io.exceptions import IncompleteReadError
from libp2p.network.config import ConnectionConfig
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from libp2p.relay.circuit_v2 import CircuitV2Protocol
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, Status, StopMessage
from libp2p.relay.circuit_v2.pb.circuit_pb2 import PeerId as CircuitPeerId
from libp2p.relay.circuit_v2.protocol import PROTOCOL_ID as HOP
from libp2p.relay.circuit_v2.protocol import STOP_PROTOCOL_ID as STOP
from libp2p.relay.circuit_v2.utils import read_delimited_msg, write_delimited_msg
from libp2p.security.insecure.transport import PLAINTEXT_PROTOCOL_ID, InsecureTransport
from libp2p.stream_muxer.yamux.yamux import TYPE_DATA, YAMUX_HEADER_FORMAT
from libp2p.tools.anyio_service import background_trio_service
from multiaddr import Multiaddr

GUARDED = "guarded" in sys.argv
LISTEN = [Multiaddr("/ip4/127.0.0.1/tcp/0")]
ECHO = TProtocol("/echo")


def keys(number: int) -> Any:
    return create_new_key_pair(number.to_bytes(4, "big") * 8)


def make_host(number: int) -> Any:
    """A host with the library's defaults, or ours."""
    if not GUARDED:
        return new_host(key_pair=keys(number))
    from distro_node.crypto.identity import Identity
    from distro_node.node.network.host import build_host

    return build_host(Identity.from_seed(number.to_bytes(4, "big") * 8), max_connections=100)[0]


async def echo(stream: Any) -> None:
    await stream.write(await stream.read(10))
    await stream.close()


async def answers(client: Any, server: Any) -> bool:
    """Whether the connection from one host to another still works."""
    try:
        with trio.fail_after(5):
            stream = await client.new_stream(server.get_id(), [ECHO])
            await stream.write(b"x")
            return await stream.read(1) == b"x"
    except Exception:
        return False


async def call(client: Any, server: Any) -> None:
    """Connect one host to another; ours writes down no address to dial later."""
    if GUARDED:
        await client.get_network().dial_addr(server.get_addrs()[0], server.get_id())
    else:
        await client.connect(info_from_p2p_addr(server.get_addrs()[0]))


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Any, Any]]:
    """Two hosts, the first connected to the second, which echoes."""
    client, server = make_host(1), make_host(2)
    server.set_stream_handler(ECHO, echo)
    async with client.run(LISTEN), server.run(LISTEN):
        await call(client, server)
        yield client, server


async def plaintext_impersonation() -> bool:
    """Somebody who knows nothing but a public key passes for its owner."""
    victim, mallory = keys(77).public_key, keys(78)

    class BorrowedKey:
        def get_public_key(self) -> Any:
            return victim

        def __getattr__(self, name: str) -> Any:
            return getattr(mallory.private_key, name)

    transport: Any = InsecureTransport(mallory)
    transport.local_peer = ID.from_pubkey(victim)
    transport.local_private_key = BorrowedKey()
    attacker = new_host(key_pair=mallory, sec_opt={TProtocol(PLAINTEXT_PROTOCOL_ID): transport})
    server = make_host(2)
    seen: list[ID] = []

    async def note(stream: Any) -> None:
        seen.append(stream.muxed_conn.peer_id)
        await echo(stream)

    server.set_stream_handler(ECHO, note)
    async with server.run(LISTEN), attacker.run(LISTEN):
        try:
            with trio.fail_after(3):
                await call(attacker, server)
            await answers(attacker, server)
        except Exception:
            # Refused: what a guarded host does.
            return False
    return ID.from_pubkey(victim) in seen


async def cancelled_write() -> bool:
    """A write that is cancelled halfway breaks the connection for everybody."""
    async with pair() as (client, server):
        muxer = client.get_network().get_connections(server.get_id())[0].muxed_conn
        socket = muxer.secured_conn.conn.read_writer.read_write_closer.stream
        stream = await client.new_stream(server.get_id(), [ECHO])
        original = socket.write

        with trio.move_on_after(60) as scope:

            async def write_halfway(data: bytes) -> None:
                socket.write = original
                await original(data[: len(data) // 2])
                scope.cancel()
                await trio.sleep(0.01)
                await original(data[len(data) // 2 :])

            socket.write = write_halfway
            await stream.write(b"y")
        return not await answers(client, server)


async def raising_handler() -> bool:
    """An exception in a stream handler ends the host."""

    async def explode(stream: Any) -> None:
        raise ValueError("from the handler")

    async def attack(client: Any, server: Any) -> None:
        server.set_stream_handler(TProtocol("/explode"), explode)
        # The stream may be gone before we have it; either way the handler has run.
        with contextlib.suppress(Exception):
            await client.new_stream(server.get_id(), [TProtocol("/explode")])

    return await _ends(pair, attack)


@asynccontextmanager
async def gossiping_pair() -> AsyncIterator[tuple[Any, Any]]:
    """Two hosts with pubsub on top, both subscribed to the topic t."""
    async with AsyncExitStack() as stack:
        hosts = await stack.enter_async_context(pair())
        both = []
        for host in hosts:
            router = GossipSub([TProtocol("/meshsub/1.1.0")], 6, 4, 8, heartbeat_interval=1)
            pubsub = Pubsub(host, router, strict_signing=True)
            host.pubsub = pubsub
            await stack.enter_async_context(background_trio_service(pubsub))
            await stack.enter_async_context(background_trio_service(router))
            await pubsub.wait_until_ready()
            await pubsub.subscribe("t")
            both.append(pubsub)
        for mine, theirs in (both, both[::-1]):
            await mine.ensure_peer_stream(theirs.my_id)
        for mine, theirs in (both, both[::-1]):
            await mine.wait_for_subscription(theirs.my_id, "t")
        yield hosts


async def gossip_garbage() -> bool:
    """Five bytes that are no RPC end the peer's pubsub."""

    async def attack(client: Any, server: Any) -> None:
        await client.pubsub.peers[server.get_id()].write(b"\x05\xff\xff\xff\xff\xff")

    return await _ends(gossiping_pair, attack)


async def gossip_bad_key() -> bool:
    """A message with a key that does not parse ends it, too."""

    async def attack(client: Any, server: Any) -> None:
        message = rpc_pb2.Message(data=b"x", topicIDs=["t"], seqno=bytes(8), signature=b"s")
        message.from_id = b"\x12\x20" + bytes(32)
        message.key = b"\xff\xffgarbage"
        client.pubsub.peer_queues[server.get_id()].push(rpc_pb2.RPC(publish=[message]))

    return await _ends(gossiping_pair, attack)


async def gossip_raising_validator() -> bool:
    """And so does a validator that raises."""

    def explode(forwarder: Any, message: Any) -> bool:
        raise ValueError("from the validator")

    async def attack(client: Any, server: Any) -> None:
        server.pubsub.set_topic_validator("t", explode, False)
        await client.pubsub.publish("t", b"x")

    return await _ends(gossiping_pair, attack)


async def endless_topic() -> bool:
    """A peer may make us remember topics of any length."""
    async with gossiping_pair() as (client, server):
        subscription = rpc_pb2.RPC.SubOpts(subscribe=True, topicid="x" * 100_000)
        server.pubsub.handle_subscription(client.get_id(), subscription)
        return any(len(topic) == 100_000 for topic in server.pubsub.peer_topics)


async def forgotten_subscription() -> bool:
    """A gossip stream that breaks and is replaced costs the peer its subscriptions."""
    async with gossiping_pair() as (client, server):
        client.pubsub._handle_dead_peer(server.get_id())
        await client.pubsub.wait_for_peer(server.get_id())
        await answers(client, server)
        return server.get_id() not in client.pubsub.peer_topics.get("t", ())


async def uncounted_registrations() -> bool:
    """A peer that answers no negotiation keeps a task of ours for each of its connections."""
    async with AsyncExitStack() as stack:
        silent, server = await stack.enter_async_context(pair())
        pubsub = Pubsub(server, GossipSub([TProtocol("/meshsub/1.1.0")], 6, 4, 8))
        await stack.enter_async_context(background_trio_service(pubsub))
        await pubsub.wait_until_ready()
        negotiating = 0

        async def never(peer: Any, protocols: Any) -> None:
            nonlocal negotiating
            negotiating += 1
            await trio.sleep_forever()

        server.new_stream = never
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(pubsub._handle_new_peer_with_retry, silent.get_id())
            await trio.testing.wait_all_tasks_blocked(0.05)
            nursery.cancel_scope.cancel()
        return negotiating > 1


async def unasked_dial() -> bool:
    """Opening a stream to a peer that has gone dials it."""
    async with pair() as (client, server):
        await client.get_network().close_peer(server.get_id())
        return await answers(client, server)


async def short_queue() -> bool:
    """Of a hundred messages at once most are dropped before they are sent."""
    async with gossiping_pair() as (client, server):
        queue = client.pubsub.peer_queues[server.get_id()]
        message = rpc_pb2.Message(data=b"x", topicIDs=["elsewhere"])
        return not all(queue.push(rpc_pb2.RPC(publish=[message])) for _ in range(100))


async def impatient_reader() -> bool:
    """Whatever comes in more than 101 pieces is given up on."""

    class Dribble:
        async def read(self, n: int | None = None) -> bytes:
            return b"x"

    try:
        dribble: Any = Dribble()
        return await libp2p.io.utils.read_exactly(dribble, 200) != b"x" * 200
    except IncompleteReadError:
        return True


async def inbound_slots() -> bool:
    """A host that has been called as often as it may have connections takes no more calls."""
    server = make_host(2)
    network = server.get_network()
    network.connection_config = ConnectionConfig(
        max_connections=2, high_watermark=2, low_watermark=0, min_connections=0
    )
    network._init_connection_management()
    server.set_stream_handler(ECHO, echo)
    async with server.run(LISTEN):
        for number in range(3):
            client = make_host(10 + number)
            async with client.run(LISTEN):
                try:
                    with trio.fail_after(5):
                        await call(client, server)
                except Exception:
                    return True
                await client.disconnect(server.get_id())
            with trio.fail_after(5):
                while network.get_connections():  # noqa: ASYNC110  (there is no event for it)
                    await trio.sleep(0.01)
    return False


async def ignored_window() -> bool:
    """A peer that ignores its send window fills our memory."""

    async def ignore(stream: Any) -> None:
        await trio.sleep_forever()

    async with pair() as (client, server):
        server.set_stream_handler(TProtocol("/ignore"), ignore)
        stream = await client.new_stream(server.get_id(), [TProtocol("/ignore")])
        mine = stream.muxed_conn
        theirs = server.get_network().get_connections(client.get_id())[0].muxed_conn
        header = struct.pack(
            YAMUX_HEADER_FORMAT, 0, TYPE_DATA, 0, stream.muxed_stream.stream_id, 60_000
        )
        with contextlib.suppress(Exception):
            for _ in range(300):
                await mine._write_frame(header + bytes(60_000))
        # An answer on the same connection comes after all of that has been read.
        await answers(client, server)
        return sum(len(buffer) for buffer in theirs.stream_buffers.values()) > 1 << 18


async def kept_after_reset() -> bool:
    """What a stream had received stays in memory for a minute after it was reset."""

    async def send_much(stream: Any) -> None:
        await stream.write(bytes(100_000))
        await stream.write(b"and wait")

    async with pair() as (client, server):
        server.set_stream_handler(TProtocol("/much"), send_much)
        stream = await client.new_stream(server.get_id(), [TProtocol("/much")])
        await stream.read(1)
        await answers(client, server)
        await stream.reset()
        return any(map(len, stream.muxed_conn.stream_buffers.values()))


async def lost_reset() -> bool:
    """A reset that is cancelled while others use the line is never said; the other side waits on."""
    async with pair() as (client, server):
        ended = trio.Event()

        async def wait(stream: Any) -> None:
            with contextlib.suppress(Exception):
                await stream.read(1)
                await stream.read(1)
            ended.set()

        server.set_stream_handler(TProtocol("/wait"), wait)
        stream = await client.new_stream(server.get_id(), [TProtocol("/wait")])
        await stream.write(b"x")
        with trio.move_on_after(60) as scope:
            async with stream.muxed_conn._write_lock, trio.open_nursery() as nursery:
                nursery.start_soon(stream.reset)
                await trio.testing.wait_all_tasks_blocked(0.05)
                scope.cancel()
        await answers(client, server)
        with trio.move_on_after(5):
            await ended.wait()
        return not ended.is_set()


async def hoarded_streams() -> bool:
    """A peer may open as many streams as it likes and say nothing on them."""
    async with pair() as (client, server):
        mine = client.get_network().get_connections(server.get_id())[0].muxed_conn
        for _ in range(200):
            await mine.open_stream()
        await answers(client, server)
        theirs = server.get_network().get_connections(client.get_id())[0]
        return len(theirs.muxed_conn.streams) >= 200


async def half_closed_streams() -> bool:
    """A stream that the peer does not end stays in the books when its handler is done with it."""

    async def take(stream: Any) -> None:
        await stream.read(1)
        await stream.close()

    async with pair() as (client, server):
        server.set_stream_handler(TProtocol("/take"), take)
        theirs = server.get_network().get_connections(client.get_id())[0].muxed_conn
        before = len(theirs.streams)
        for _ in range(5):
            stream = await client.new_stream(server.get_id(), [TProtocol("/take")])
            await stream.write(b"xy")
        await answers(client, server)
        return len(theirs.streams) >= before + 5


@asynccontextmanager
async def relaying(host: Any) -> AsyncIterator[None]:
    """Let a host that runs be a relay, the library's or ours."""
    if not GUARDED:
        async with background_trio_service(CircuitV2Protocol(host, allow_hop=True)):
            await trio.testing.wait_all_tasks_blocked(0.05)
            yield
        return
    from distro_node.node.network.addresses import id_of
    from distro_node.node.network.circuit_relay import CircuitLimits, CircuitRelay
    from distro_node.node.network.rates import Rate

    CircuitRelay(
        host,
        CircuitLimits(),
        open_stream=lambda peer, protocol: host.new_stream(id_of(peer), [TProtocol(protocol)]),
        refuses=lambda peer: False,
        willing=lambda: True,
        rate=Rate(),
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
        relay, caller, *callees = (make_host(number) for number in (1, 2, 3, 4))
        for host in (relay, caller, *callees):
            await stack.enter_async_context(host.run(LISTEN))
        await stack.enter_async_context(relaying(relay))
        for host in (caller, *callees):
            host.set_stream_handler(STOP, take)
            await call(host, relay)
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
        try:
            with trio.fail_after(5):
                # The library looks three times, with pauses, before it believes in an end.
                for _ in range(80):
                    await circuits[1].write(b"x")
                    if await circuits[1].read(1) != b"x":
                        return True
                    await trio.sleep(0.02)
        except Exception:
            return True
    return False


async def talkative() -> bool:
    """Connections make the library print on the terminal whatever anybody logs."""
    async with pair():
        return bool(logging.root.handlers)


async def _ends(setting: Callable[[], Any], attack: Callable[[Any, Any], Awaitable[None]]) -> bool:
    """Whether an attack of the first host on the second ends the program."""
    try:
        async with setting() as (client, server):
            await attack(client, server)
            # The crash cancels this; without one, a few answers later it has had its chance.
            for _ in range(5):
                if not await answers(client, server):
                    return True
                await trio.sleep(0.02)
    except BaseExceptionGroup:
        return True
    return False


FAULTS = (
    plaintext_impersonation,
    cancelled_write,
    raising_handler,
    gossip_garbage,
    gossip_bad_key,
    gossip_raising_validator,
    endless_topic,
    forgotten_subscription,
    uncounted_registrations,
    unasked_dial,
    short_queue,
    impatient_reader,
    inbound_slots,
    ignored_window,
    kept_after_reset,
    lost_reset,
    hoarded_streams,
    half_closed_streams,
    entangled_circuits,
    talkative,
)


def main() -> None:
    """Try all faults and print which appeared."""
    if GUARDED:
        from distro_node.node.network import guards

        guards.install()
    results: dict[str, bool | str] = {}
    for fault in FAULTS:
        try:
            results[fault.__name__] = trio.run(fault)
        except BaseException as error:
            results[fault.__name__] = f"neither: {error!r}"
    print(json.dumps(results))


if __name__ == "__main__":
    main()
