"""What py-libp2p 0.8 needs before strangers may talk to it.

Each guard is one small patch with the reason beside it; tests/network/test_guards.py shows every
fault without its guard, so that a release which mends one makes a test say so. Three faults are
guarded elsewhere: the plaintext handshake (`host.build_host` offers Noise alone), colliding sequence
numbers after a restart (`gossip.Gossip` sets the counter), and the library's circuit relay, which
mixes up the circuits of a peer and takes any place in anybody's name (`relaying` is our own). What is no
fault but costs processor time is in `queues` and `short_cuts`, and put in place here.
"""

# ruff: noqa: E402  (the version is checked before importing names that another version may lack)
from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import struct
from typing import Any

import trio

_VERSION = importlib.metadata.version("libp2p")
if not _VERSION.startswith("0.8."):
    raise ImportError(
        f"distro-node patches the internals of libp2p 0.8 and cannot run with libp2p {_VERSION}; "
        "install libp2p==0.8.1"
    )

import libp2p.io.msgio
import libp2p.io.utils
import libp2p.network.connection.swarm_connection
import libp2p.pubsub.gossipsub
import libp2p.pubsub.pubsub
import libp2p.stream_muxer.yamux.yamux
import libp2p.utils.varint
from libp2p.host.basic_host import BasicHost
from libp2p.io.exceptions import ConnectionClosedError, IncompleteReadError
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.network.exceptions import SwarmException
from libp2p.network.stream.net_stream import NetStream
from libp2p.network.swarm import Swarm
from libp2p.pubsub.pubsub import Pubsub
from libp2p.pubsub.rpc_queue import RpcQueue
from libp2p.stream_muxer.yamux.yamux import (
    FLAG_RST,
    TYPE_WINDOW_UPDATE,
    YAMUX_HEADER_FORMAT,
    Yamux,
    YamuxStream,
)
from libp2p.tools.anyio_service.exceptions import TooManyChildrenException
from libp2p.tools.anyio_service.trio_manager import TrioManager

from .gossip_router import SendQueue
from .queues import grant_credit, read_gathered
from .scopes import shielded
from .short_cuts import (
    FreeLock,
    NoiseWire,
    read_body,
    read_stream,
    write_frame,
    write_stream,
)
from .streams import finish

log = logging.getLogger(__name__)

# A line that does not move 64 KiB in this time is dead (6.5 KB/s), and whoever waits behind them had
# better see a broken connection.
WRITE_STALL_SECONDS = 10.0
_WRITE_STALL_BYTES = 1 << 16
# Streams that one peer may have open towards us, over all its connections. A member needs a dozen, and
# a relay that puts 64 circuits through to us twice as many; each may hold a window of unread bytes.
MAX_STREAMS_PER_PEER = 128
# Topics are an identifier and a few letters; longer ones only fill our memory.
MAX_TOPIC_CHARACTERS = 128

# These report as an error what a peer does wrong or a line does by itself; their callers hear of it
# by an exception and judge better what is worth a line in the log.
_CHATTY = (
    "libp2p.discovery.upnp.upnp",
    "libp2p.host.basic_host",
    "libp2p.network.swarm",
    "libp2p.protocol_muxer.multiselect_client",
    "libp2p.pubsub.gossipsub",
    "libp2p.pubsub.pubsub",
    "libp2p.stream_muxer.yamux.yamux",
    "libp2p.transport.tcp.tcp",
)

ORIGINALS: dict[str, Any] = {}
"""The library's own functions by name, once `install` has replaced them."""


def install() -> None:
    """Patch libp2p. Calling it again does nothing."""
    if ORIGINALS:
        return
    _replace(Yamux, "__init__", _yamux_init)
    _replace(YamuxStream, "reset", _reset)
    _replace(BasicHost, "_swarm_stream_handler", _stream_handler)
    _replace(TrioManager, "run_task", _run_task)
    _replace(Pubsub, "continuously_read_stream", _read_pubsub_stream)
    _replace(Pubsub, "handle_subscription", _handle_subscription)
    _replace(Pubsub, "_handle_dead_peer", _handle_dead_peer)
    _replace(Pubsub, "_handle_new_peer_with_retry", _register_peer)
    _replace(RpcQueue, "__init__", _rpc_queue_init)
    _replace(Swarm, "_do_handle_inbound_connection", _inbound_connection)
    _replace(Swarm, "new_stream", _new_stream)
    # No faults: these cost processor time for every packet, every read and every frame.
    _replace(TrioTCPStream, "read", read_gathered)
    _replace(YamuxStream, "_auto_tune_and_send_window_update", grant_credit)
    _replace(YamuxStream, "__init__", _yamux_stream_init)
    _replace(YamuxStream, "read", read_stream)
    _replace(YamuxStream, "write", write_stream)
    _replace(Yamux, "_read_data_body", read_body)
    _replace(Yamux, "_write_frame", write_frame)
    _replace(NetStream, "__init__", _net_stream_init)
    _replace(TrioTCPStream, "__init__", _tcp_stream_init)
    for module in (
        libp2p.io.utils,
        libp2p.io.msgio,
        libp2p.stream_muxer.yamux.yamux,
        libp2p.utils.varint,
    ):
        _replace(module, "read_exactly", read_exactly)
    for module in (libp2p.pubsub.gossipsub, libp2p.pubsub.pubsub):
        _replace(module, "maybe_consume_signed_record", _ignore_record)
    _quieten()


class GuardedConnection:
    """The encrypted connection under a muxer: counted, timed, and safe to be cancelled.

    A write that is cancelled between encryption and the last byte leaves the two ends of Noise out
    of step, which kills every stream of the connection; so a write that has begun is finished, or
    the connection is closed.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._wire = NoiseWire(inner)
        self.sent = 0
        """Bytes handed to the connection, before encryption."""
        self.received = 0
        self.heard = trio.current_time()
        """When the last bytes came in, on trio's clock."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def read(self, n: int | None = None) -> bytes:
        data = await self._wire.read(n)
        self.received += len(data)
        self.heard = trio.current_time()
        return data

    def take(self, count: int) -> bytes | None:
        """The next `count` bytes, if they are here already."""
        data = self._wire.take(count)
        self.received += len(data or b"")
        return data

    async def write(self, data: bytes) -> None:
        with shielded(WRITE_STALL_SECONDS * max(1, len(data) / _WRITE_STALL_BYTES)) as scope:
            await self._wire.write(data)
        if scope.cancelled_caught:
            with shielded(2):
                await self._inner.close()
            raise ConnectionClosedError("the line stopped moving", transport="tcp")
        self.sent += len(data)


class _WindowIgnored(trio.TooSlowError):
    """The one kind of error that ends the connection wherever the muxer meets it."""


class _Unread(bytearray):
    """A stream's receive buffer. The library notices a peer that ignores its window, and goes on
    buffering; here that ends the connection."""

    def __init__(self, stream: YamuxStream) -> None:
        super().__init__()
        self._stream = stream

    def extend(self, data: Any) -> None:
        # The caller takes it from the window afterwards.
        if len(data) > self._stream.recv_window:
            raise _WindowIgnored
        super().extend(data)


class _UnreadByStream(dict[int, bytearray]):
    def __init__(self, streams: dict[int, YamuxStream]) -> None:
        super().__init__()
        self._streams = streams

    def __setitem__(self, stream: int, buffer: bytearray) -> None:
        # The library puts the stream into its book first, and the buffer is a new one.
        super().__setitem__(stream, _Unread(self._streams[stream]))


def _yamux_init(self: Yamux, secured_conn: Any, *arguments: Any, **options: Any) -> None:
    ORIGINALS["Yamux.__init__"](self, GuardedConnection(secured_conn), *arguments, **options)
    self.stream_buffers = _UnreadByStream(self.streams)
    _free(self, "streams_lock", "_write_lock")


def _yamux_stream_init(self: YamuxStream, *arguments: Any, **options: Any) -> None:
    ORIGINALS["YamuxStream.__init__"](self, *arguments, **options)
    _free(self, "window_lock")


def _net_stream_init(self: NetStream, *arguments: Any, **options: Any) -> None:
    ORIGINALS["NetStream.__init__"](self, *arguments, **options)
    _free(self, "_state_lock")


def _tcp_stream_init(self: TrioTCPStream, *arguments: Any, **options: Any) -> None:
    ORIGINALS["TrioTCPStream.__init__"](self, *arguments, **options)
    _free(self, "read_lock", "write_lock")


def _free(owner: Any, *locks: str) -> None:
    for name in locks:
        setattr(owner, name, FreeLock())


async def _reset(self: YamuxStream) -> None:
    # The library waits until the line is free, and if the caller is cancelled meanwhile, the other side
    # never hears of the reset and keeps its end open. Here the caller does not wait, and the word goes
    # out in a task of the muxer's. What a stream that we gave up had received would lie in memory for
    # another minute or more.
    muxer = self.conn
    if not self.closed and not muxer.event_shutting_down.is_set() and muxer._nursery is not None:
        muxer._nursery.start_soon(_say_reset, muxer, self.stream_id)
    self.closed = self.send_closed = self.recv_closed = self.reset_received = True
    if self.stream_id in muxer.stream_events:
        muxer.stream_events[self.stream_id].set()
    muxer._finalize_stream_locked(self, fully_closed=True)
    for table in (muxer.streams, muxer.stream_buffers, muxer.stream_events):
        table.pop(self.stream_id, None)


async def _say_reset(muxer: Yamux, stream: int) -> None:
    frame = struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_WINDOW_UPDATE, FLAG_RST, stream, 0)
    try:
        await muxer._write_frame(frame)
    except Exception as error:
        # The connection has ended, and with it the stream on the other side.
        log.debug("a reset could not be sent: %r", error)


async def _stream_handler(self: BasicHost, stream: Any) -> None:
    # An exception out of a stream handler, ours or the library's, ends the whole host.
    try:
        if _opened_by(self, stream) > MAX_STREAMS_PER_PEER:
            await stream.reset()
            return
        await ORIGINALS["BasicHost._swarm_stream_handler"](self, stream)
        # The library keeps a stream whose other end is never closed for as long as the connection.
        await finish(stream)
    except Exception as error:
        log.info("a stream failed: %r", error)
        with shielded(2):
            await stream.reset()


def _opened_by(host: BasicHost, stream: Any) -> int:
    """How many streams the peer at the other end of one has opened and not ended."""
    connections = host.get_network().get_connections(stream.muxed_conn.peer_id)
    muxers = {stream.muxed_conn, *(each.muxed_conn for each in connections)}
    return sum(not each.is_initiator for muxer in muxers for each in muxer.streams.values())


def _run_task(self: TrioManager, function: Any, *arguments: Any, **options: Any) -> None:
    # What a task of a service raises ends the service, and with it the node: a key that does not
    # parse, a validator, a muxer. Here it ends the task, and the connection if it was one's.
    if options.get("daemon") or options.get("_internal"):
        ORIGINALS["TrioManager.run_task"](self, function, *arguments, **options)
        return

    async def run() -> None:
        try:
            await function(*arguments)
        except Exception as error:
            log.info("a task of the library failed: %r", error)
            owner: Any = getattr(function, "__self__", None)
            if isinstance(owner, Yamux | SwarmConn):
                with shielded(2), contextlib.suppress(Exception):
                    await owner.close()

    name = options.get("name") or getattr(function, "__qualname__", None)
    try:
        ORIGINALS["TrioManager.run_task"](self, run, name=name)
    except TooManyChildrenException:
        log.info("a task of the library found no place: %s", name)


async def _read_pubsub_stream(self: Pubsub, stream: Any) -> None:
    # Bytes that are no RPC end pubsub too. The stream is of no more use then; the peer, if it is
    # an honest one, opens another.
    try:
        await ORIGINALS["Pubsub.continuously_read_stream"](self, stream)
    except Exception as error:
        log.info("a gossip stream failed: %r", error)
        with shielded(2):
            await stream.reset()


def _handle_subscription(self: Pubsub, origin: Any, message: Any) -> None:
    # The library bounds how many topics a peer may name, but not how long they are.
    if len(message.topicid) <= MAX_TOPIC_CHARACTERS:
        ORIGINALS["Pubsub.handle_subscription"](self, origin, message)


def _ignore_record(message: Any, host: Any, peer: Any) -> bool:
    # Checked and written down with every message, twice. One of 100,000 addresses takes seconds, and
    # one with an older time than the last has its message dropped: whose clock was once ahead is not
    # heard again. The connection says who it is, and `introductions` where.
    return True


def _rpc_queue_init(self: RpcQueue, *arguments: Any, **options: Any) -> None:
    # 32 messages wait for a peer and further ones are dropped: fewer than one round of votes.
    ORIGINALS["RpcQueue.__init__"](self, *arguments, **options)
    self._queue = SendQueue()


def _handle_dead_peer(self: Pubsub, peer: Any) -> None:
    # When our gossip stream to a peer breaks while another connection to it holds, the library
    # opens a new one but forgets what the peer has subscribed to; the peer, whose own stream is in
    # order, does not say it again, and never gets another message from us. What it raises would end
    # the task that waits for the end of connections.
    topics = [topic for topic, peers in self.peer_topics.items() if peer in peers]
    try:
        ORIGINALS["Pubsub._handle_dead_peer"](self, peer)
    except Exception as error:
        log.info("a peer of gossip did not go: %r", error)
    if self._peer_is_connected(peer):
        for topic in topics:
            self.peer_topics.setdefault(topic, set()).add(peer)
        if topics:
            self._peer_subscription_count[peer] = len(topics)


async def _register_peer(self: Pubsub, peer: Any, timeout: float | None = None) -> None:
    # Each connection of a peer starts this, and it may last as long as the peer pleases: it goes on
    # with the next connection when one ends. After a thousand of them pubsub ends, and the host.
    registering: set[Any] = vars(self).setdefault("_registering", set())
    if peer in registering:
        return
    registering.add(peer)
    try:
        await ORIGINALS["Pubsub._handle_new_peer_with_retry"](self, peer, timeout)
    finally:
        registering.discard(peer)


async def _new_stream(self: Swarm, peer: Any) -> Any:
    # A peer that has gone would be dialled, at whatever address it once named, for minutes; we dial
    # when we mean to.
    if not self.get_connections(peer):
        raise SwarmException(f"not connected to {peer}")
    return await ORIGINALS["Swarm.new_stream"](self, peer)


async def _inbound_connection(self: Swarm, stream: Any, address: Any, failure: Any) -> None:
    # The library gives an inbound connection's slot back when the host ends rather than when the
    # connection does: after `max_connections` visitors a host is deaf for good.
    connection = RawConnection(stream, False)
    try:
        muxed: Any = await self.upgrade_inbound_raw_conn(connection, address)
        await muxed.event_closed.wait()
    except Exception as error:
        log.debug("an inbound connection failed: %r", error)
    finally:
        with shielded(2):
            await connection.close()


async def read_exactly(reader: Any, n: int, retry_count: int = 0) -> bytes:
    """Read `n` bytes, however many pieces they come in; the library's own gives up after 101.

    Raises `IncompleteReadError` at the end of the stream.
    """
    buffer = bytearray()
    while len(buffer) < n:
        piece = await reader.read(n - len(buffer))
        if len(piece) == n:
            return piece
        if not piece:
            raise IncompleteReadError(
                f"expected {n} bytes, got {len(buffer)}",
                expected_bytes=n,
                received_bytes=len(buffer),
            )
        buffer += piece
    return bytes(buffer)


def _quieten() -> None:
    """Let libp2p's warnings into the program's log, and keep them off the terminal."""
    logger = logging.getLogger("libp2p")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    # Without any handler Python itself would print warnings on the terminal.
    logger.addHandler(logging.NullHandler())
    logger.setLevel(logging.WARNING)
    logger.propagate = True
    for name, child in logging.root.manager.loggerDict.items():
        if name.startswith("libp2p.") and isinstance(child, logging.Logger):
            child.setLevel(logging.NOTSET)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # This module logs through the root logger, and the first such call installs a handler that
    # prints on the terminal.
    module: Any = libp2p.network.connection.swarm_connection
    module.logging = logging.getLogger(module.__name__)


def _replace(owner: Any, name: str, function: Any) -> None:
    short = owner.__name__.rpartition(".")[2]
    ORIGINALS[f"{short}.{name}"] = getattr(owner, name)
    setattr(owner, name, function)
