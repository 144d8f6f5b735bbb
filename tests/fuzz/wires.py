"""The layers under the requests: frames, circuits, and the library's layers with our guards around them.

No input may raise anything into the library's code, where it would end more than a stream: so the
only permitted failure is a stream or connection that ends.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import trio
import trio.testing
from distro_node.crypto.identity import PeerId
from distro_node.node.network import library_patches
from distro_node.node.network.addresses import id_of
from distro_node.node.network.circuit_client import HOP, STOP, Circuits
from distro_node.node.network.circuit_relay import CircuitLimits, CircuitRelay
from distro_node.node.network.network import Network, NetworkSettings, open_network
from distro_node.node.network.rate_limits import Rate
from distro_node.node.network.requests import Requests
from distro_node.node.network.scores import OffenceScores
from distro_node.node.network.traffic import Traffic
from distro_node.protocol.wire.errors import ProtocolError
from fuzz.loops import Loop, idle
from fuzz.targets import Target, packed, unpacked
from libp2p.connection_types import ConnectionType
from libp2p.network.exceptions import SwarmException
from libp2p.pubsub.pb import rpc_pb2
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, Status, StopMessage
from libp2p.stream_muxer.yamux.yamux import (
    FLAG_SYN,
    TYPE_DATA,
    TYPE_GO_AWAY,
    TYPE_PING,
    TYPE_WINDOW_UPDATE,
    YAMUX_HEADER_FORMAT,
    Yamux,
)
from libp2p.utils.varint import encode_uvarint
from multiaddr import Multiaddr
from simulation.swarm import identity

# Private here: `_handle_inbound_connection`, `_swarm`, `_scores`, `_reservations`: an input comes in
# where a stranger's bytes do, before anything public is made of them.
_ECHO = "/fuzz/echo/1"
_TOPIC = "swarm"
_PEER = identity(41).peer
_CALLEE = identity(42).peer
_REMOTE = ("93.184.216.34", 4001)


class Stream:
    """A stream with an input at its other end; whatever is written to it is discarded."""

    def __init__(self, data: bytes, peer: PeerId = _PEER) -> None:
        self._data = data
        self.muxed_stream: Any = SimpleNamespace(
            stream_id=1,
            send_window=1 << 20,
            closed=False,
            send_closed=False,
            reset_received=False,
            conn=SimpleNamespace(event_shutting_down=trio.Event(), stream_events={}),
        )
        secured = SimpleNamespace(get_remote_address=lambda: _REMOTE)
        self.muxed_conn = SimpleNamespace(
            peer_id=id_of(peer),
            secured_conn=secured,
            get_connection_type=lambda: ConnectionType.DIRECT,
        )

    async def read(self, n: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        size = len(self._data) if n is None or n < 0 else n
        piece, self._data = self._data[:size], self._data[size:]
        return piece

    async def write(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()

    async def close(self, *_: object) -> None:
        await trio.lowlevel.checkpoint()

    reset = close_write = aclose = close

    def get_remote_address(self) -> tuple[str, int]:
        return _REMOTE


def targets() -> Iterator[Target]:
    """Yield one target for each layer that reads before the peer is authenticated, and for those
    built on it."""
    library_patches.install()
    frame = len(b"question").to_bytes(4, "big") + b"question"
    yield Target(
        "request",
        partial(idle.run, _request),
        (frame, b"\0\0\0\0", b"\xff\xff\xff\xff"),
        ("node.network.requests:TProtocol(protocol)",),
        allowed=(),
        structured=False,
        most=512,
    )
    connect = HopMessage(type=HopMessage.CONNECT)
    connect.peer.id = id_of(_CALLEE).to_bytes()
    taken = prefixed(StopMessage(type=StopMessage.STATUS, status=Status.OK))
    yield Target(
        "relay of circuits",
        partial(idle.run, _relay),
        (
            packed(prefixed(HopMessage(type=HopMessage.RESERVE)), b""),
            packed(prefixed(connect) + b"hello", taken + b"hello"),
            packed(prefixed(connect), prefixed(StopMessage(type=StopMessage.STATUS))),
        ),
        (HOP,),
        allowed=(),
    )
    call = StopMessage(type=StopMessage.CONNECT)
    call.peer.id = id_of(_PEER).to_bytes()
    yield Target(
        "being called through a relay",
        partial(idle.run, _called),
        (prefixed(call), prefixed(StopMessage(type=StopMessage.STATUS))),
        (STOP,),
        allowed=(),
        structured=False,
    )
    multistream, noise = b"\x13/multistream/1.0.0\n", b"\x07/noise\n"
    yield Target(
        "handshake",
        partial(_open.run, _shake_hands),
        (multistream + noise + b"\0\x20" + bytes(32), multistream, b"\x13/multistream/2.0.0\n"),
        ("a connection's beginning",),
        allowed=(),
        structured=False,
    )
    yield Target(
        "muxer",
        partial(idle.run, _mux),
        tuple(_frames()),
        ("the frames of a connection",),
        allowed=(),
        structured=False,
    )
    yield Target(
        "gossip's own words",
        partial(_open.run, _receive),
        tuple(map(prefixed, _rpcs())),
        ("gossip's own words",),
        allowed=(),
        structured=False,
    )


def prefixed(message: Any) -> bytes:
    """Encode a protobuf message in the form written to a stream."""
    data = message.SerializeToString()
    return encode_uvarint(len(data)) + data


async def _request(data: bytes) -> object:
    traffic, handlers = Traffic(), {}
    host: Any = SimpleNamespace(set_stream_handler=handlers.__setitem__)

    async def echo(peer: PeerId, request: bytes) -> bytes:
        if request.startswith(b"\0"):
            raise ProtocolError("malformed", "no question")
        return request

    async with trio.open_nursery() as nursery:
        requests = Requests(
            *(host, nursery, traffic),
            connected=lambda: frozenset({_PEER}),
            refuses=lambda peer: False,
            penalise=lambda peer, reason: None,
        )
        requests.serve(_ECHO, echo, max_request=256, max_concurrent=4)
        await handlers[_ECHO](Stream(data))
        nursery.cancel_scope.cancel()
    assert not traffic.failures
    return traffic.rejected


async def _relay(data: bytes) -> object:
    caller, callee = unpacked(data, bytes, bytes) or (data, b"")
    handlers: dict[str, Any] = {}
    host: Any = SimpleNamespace(
        set_stream_handler=handlers.__setitem__,
        get_addrs=lambda: [Multiaddr("/ip4/93.184.216.34/tcp/4001")],
    )

    async def open_stream(peer: PeerId, protocol: str) -> Any:
        return Stream(callee, peer)

    relay = CircuitRelay(
        host,
        CircuitLimits(),
        open_stream=open_stream,
        connected=lambda: {_CALLEE},
        refuses=lambda peer: False,
        willing=lambda: True,
        knows=lambda peer: True,
        rates=(Rate(),),
    )
    await handlers[HOP](Stream(prefixed(HopMessage(type=HopMessage.RESERVE)), _CALLEE))
    assert relay.has_reservation(_CALLEE)
    await handlers[HOP](Stream(caller))
    assert not relay.circuits
    return relay.refused


async def _called(data: bytes) -> object:
    handlers: dict[str, Any] = {}
    host: Any = SimpleNamespace(set_stream_handler=handlers.__setitem__)

    async def upgrade(connection: Any, address: object) -> Any:
        # The handshake has a target of its own.
        if not await connection.read(1):
            raise SwarmException("nothing came")
        return SimpleNamespace(event_closed=closed)

    closed = trio.Event()
    closed.set()
    swarm: Any = SimpleNamespace(upgrade_inbound_raw_conn=upgrade)
    circuits = Circuits(host, swarm, open_stream=upgrade, refuses=lambda peer: False)
    reservations: Any = circuits._reservations
    reservations[_PEER] = None
    await handlers[STOP](Stream(data))


def _frames() -> Iterator[bytes]:
    def frame(kind: int, flags: int, stream: int, length: int, body: bytes = b"") -> bytes:
        return struct.pack(YAMUX_HEADER_FORMAT, 0, kind, flags, stream, length) + body

    yield from (
        frame(TYPE_DATA, FLAG_SYN, 1, 5, b"hello") + frame(TYPE_DATA, 4, 1, 0),
        frame(TYPE_WINDOW_UPDATE, FLAG_SYN, 3, 1 << 18) + frame(TYPE_DATA, 0, 3, 3, b"abc"),
        frame(TYPE_PING, FLAG_SYN, 0, 7) + frame(TYPE_GO_AWAY, 0, 0, 0),
        frame(TYPE_WINDOW_UPDATE, 8, 1, 0) + frame(TYPE_DATA, 0, 2, 1, b"x"),
    )


class _Session:
    """An encrypted connection whose encryption changes nothing."""

    is_initiator = False

    def __init__(self, data: bytes) -> None:
        # In messages as the encryption makes them.
        pieces = [data[start : start + 700] for start in range(0, len(data), 700)]
        stream = Stream(b"".join(len(piece).to_bytes(2, "big") + piece for piece in pieces))
        self._ending = stream
        noise = SimpleNamespace(
            read_writer=SimpleNamespace(
                read_write_closer=SimpleNamespace(
                    stream=stream, read=stream.read, write=stream.write
                )
            ),
            encrypt=lambda plain: plain,
            decrypt=lambda sealed: sealed,
        )
        self.conn = noise

    def _drain(self, n: int | None) -> bytes:
        return b""

    async def close(self) -> None:
        await self._ending.close()

    def get_remote_address(self) -> tuple[str, int]:
        return _REMOTE


async def _mux(data: bytes) -> object:
    session: Any = _Session(data)
    muxer = Yamux(session, id_of(_PEER), is_initiator=False)
    heard = 0

    # As the library does it: a stream that fails, or on which nothing arrives, affects only itself.
    async def listen(stream: Any) -> None:
        nonlocal heard
        with suppress(Exception):
            heard += len(await stream.read(1 << 16))

    async def accept() -> None:
        while not muxer.event_shutting_down.is_set():
            with suppress(Exception):
                nursery.start_soon(listen, await muxer.accept_stream())

    with trio.move_on_after(600) as patience:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept)
            await muxer.start()
            await muxer.close()
            nursery.cancel_scope.cancel()
    assert not patience.cancelled_caught
    return heard


def _rpcs() -> Iterator[rpc_pb2.RPC]:
    rpc = rpc_pb2.RPC()
    rpc.subscriptions.add(subscribe=True, topicid=_TOPIC)
    rpc.control.graft.add(topicID=_TOPIC)
    rpc.control.ihave.add(topicID=_TOPIC, messageIDs=[b"i" * 40])
    yield rpc
    rpc = rpc_pb2.RPC()
    rpc.control.prune.add(topicID=_TOPIC, backoff=60).peers.add(
        peerID=id_of(_CALLEE).to_bytes(), signedPeerRecord=b"record"
    )
    rpc.control.iwant.add(messageIDs=[b"i" * 40])
    yield rpc
    message = rpc_pb2.Message(data=b"word", topicIDs=[_TOPIC], from_id=id_of(_PEER).to_bytes())
    message.seqno, message.key, message.signature = b"12345678", bytes(36), bytes(64)
    yield rpc_pb2.RPC(publish=[message])
    yield rpc_pb2.RPC(senderRecord=b"a record of somebody")


async def _serve(tell: Any) -> None:
    """Run the network of a node, with no peers other than the inputs."""
    settings = NetworkSettings(listen=("/ip4/127.0.0.1/tcp/0",))
    async with open_network(settings, identity(0)) as network:
        await network.subscribe(_TOPIC, lambda sender, data: None)
        tell(network)
        await trio.sleep_forever()


_open = Loop(_serve, idle=False)


async def _shake_hands(data: bytes) -> object:
    network: Network = _open.content
    stream: Any = Stream(data)
    await network._swarm._handle_inbound_connection(stream, Multiaddr("/ip4/127.0.0.1/tcp/1"))
    assert not network.traffic.failures


async def _receive(data: bytes) -> object:
    network: Network = _open.content
    pubsub: Any = network.gossip.pubsub
    # A peer that was refused after one input is accepted again for the next.
    network._scores = OffenceScores()
    await pubsub.continuously_read_stream(Stream(data))
    await trio.testing.wait_all_tasks_blocked()
    assert not network.traffic.failures
    assert len(pubsub.peer_topics) <= 64
    return None
