"""Replacements inside py-libp2p 0.8 that make it safe to talk to strangers.

`PATCHES` is the complete list, except for the resolvers, which are replaced before the library is
imported. It says what is replaced, by what, because of which fault, and whether the library could adopt
the change (docs/upstream has a patch and a program that shows the fault for each of those) or it stays
ours. When a release of the library fixes a fault, a test fails.

Where we create the object ourselves nothing is replaced: `pubsub`, `gossip_router` and `peer_store` are
subclasses, `host` offers Noise alone and answers none of the library's own protocols, `gossip` sets the
message counter (which would restart with the process), and `circuit_relay` is a relay of our own (the
library's mixes up the circuits of a peer).
"""

# ruff: noqa: E402  (the version is checked before importing names that another version may lack)
from __future__ import annotations

import contextlib
import importlib.metadata
import logging
from dataclasses import dataclass
from typing import Any

_VERSION = importlib.metadata.version("libp2p")
if not _VERSION.startswith("0.8."):
    raise ImportError(
        f"distro-node patches the internals of libp2p 0.8 and cannot run with libp2p {_VERSION}; "
        "install libp2p==0.8.1"
    )

import dns.asyncresolver
from multiaddr.resolvers import DNSResolver


def _resolver_without_servers(self: DNSResolver) -> None:
    self._resolver = dns.asyncresolver.Resolver(configure=False)


# The library creates resolvers when it is imported and for each host, which fails on a machine without a
# name server in /etc/resolv.conf. It gets only IP addresses to dial (`name_resolution`), so its
# resolvers need no servers.
DNSResolver.__init__ = _resolver_without_servers

import libp2p.io.msgio
import libp2p.io.utils
import libp2p.network.connection.swarm_connection
import libp2p.pubsub.pubsub
import libp2p.stream_muxer.yamux.yamux
import libp2p.transport.tcp.tcp
import libp2p.utils.varint
from libp2p.host.basic_host import BasicHost
from libp2p.io.exceptions import IncompleteReadError
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.network.exceptions import SwarmException
from libp2p.network.stream.net_stream import NetStream
from libp2p.network.swarm import Swarm
from libp2p.pubsub.rpc_queue import RpcQueue
from libp2p.stream_muxer.yamux.yamux import Yamux, YamuxStream
from libp2p.tools.anyio_service.exceptions import TooManyChildrenException
from libp2p.tools.anyio_service.trio_manager import TrioManager

from ..util.system_errors import Seldom
from .cancel_scopes import open_scope, shielded
from .connection import GuardedConnection, UnreadByStream, abandon
from .connection_limits import HandshakeLimit
from .fast_paths import (
    EagerLock,
    read_body,
    read_stream,
    write_frame,
    write_stream,
)
from .flow_control import NotifyingAttribute, grant_credit
from .gossip_router import SendQueue
from .ip_families import remote_address, share_port
from .socket_buffers import read_gathered
from .streams import finish

log = logging.getLogger(__name__)

# Streams that one peer may have open towards us, over all its connections. A member needs a dozen, and a
# relay that forwards 64 circuits to us twice as many; each may hold a window of unread bytes.
MAX_STREAMS_PER_PEER = 128

# These modules log as errors what a peer does wrong, and failures of a connection that are nobody's
# fault. Their callers get an exception, and can decide better what is worth logging.
_NOISY_LOGGERS = (
    "libp2p.discovery.upnp.upnp",
    "libp2p.host.basic_host",
    "libp2p.network.swarm",
    "libp2p.protocol_muxer.multiselect_client",
    "libp2p.pubsub.gossipsub",
    "libp2p.pubsub.pubsub",
    "libp2p.stream_muxer.yamux.yamux",
    "libp2p.transport.tcp.tcp",
)


@dataclass(frozen=True)
class LibraryPatch:
    """One replacement in the library: the target, the replacement, and the reason."""

    owner: Any
    name: str
    function: Any
    why: str
    """The fault, or the cost that is saved."""
    upstream: str
    """The patch under docs/upstream that would make the replacement unnecessary; if there is none, why
    the replacement stays ours."""

    @property
    def target(self) -> str:
        """The library's name of the replaced attribute, with its owner."""
        return f"{self.owner.__name__.rpartition('.')[2]}.{self.name}"


HANDSHAKE_LIMIT_ATTRIBUTE = "_handshake_limit"
"""The attribute of a libp2p swarm that holds its `HandshakeLimit`; if missing, a default one is created.
"""

ORIGINALS: dict[str, Any] = {}
"""The library's original at each target, once `install` has replaced it; None: there was none."""


def install() -> None:
    """Install every patch. Further calls do nothing."""
    if ORIGINALS:
        return
    for patch in PATCHES:
        ORIGINALS[patch.target] = getattr(patch.owner, patch.name, None)
        setattr(patch.owner, patch.name, patch.function)
    _route_library_logs()


def _yamux_init(self: Yamux, secured_conn: Any, *arguments: Any, **options: Any) -> None:
    ORIGINALS["Yamux.__init__"](self, GuardedConnection(secured_conn), *arguments, **options)
    self.stream_buffers = UnreadByStream(self)
    _use_eager_locks(self, "streams_lock", "_write_lock")


def _init_with_eager_locks(owner: type, *locks: str) -> Any:
    def init(self: Any, *arguments: Any, **options: Any) -> None:
        ORIGINALS[f"{owner.__name__}.__init__"](self, *arguments, **options)
        _use_eager_locks(self, *locks)

    return init


def _use_eager_locks(owner: Any, *locks: str) -> None:
    for name in locks:
        setattr(owner, name, EagerLock())


async def _reset(self: YamuxStream) -> None:
    # The library waits until the connection is free for writing. If the caller is cancelled meanwhile,
    # the other side never gets the reset and keeps its end open, and the bytes that the stream had
    # received stay in memory for another minute or more.
    abandon(self)


async def _stream_handler(self: BasicHost, stream: Any) -> None:
    # An exception from a stream handler, ours or the library's, ends the whole host.
    try:
        if _opened_by(self, stream) > MAX_STREAMS_PER_PEER:
            await stream.reset()
            return
        await ORIGINALS["BasicHost._swarm_stream_handler"](self, stream)
        if not stream.muxed_stream.send_closed:
            await stream.close()
        # The rest of the stream is not read. If a peer never ended its side of answered requests, we
        # would keep the stream, and everything that it sends there, for as long as it is connected.
        await finish(stream)
    except Exception as error:
        log.info("a stream failed: %r", error)
        with shielded(2):
            await stream.reset()


def _opened_by(host: BasicHost, stream: Any) -> int:
    """Return how many streams the peer at the other end has opened and not ended."""
    connections = host.get_network().get_connections(stream.muxed_conn.peer_id)
    muxers = {stream.muxed_conn, *(each.muxed_conn for each in connections)}
    return sum(not each.is_initiator for muxer in muxers for each in muxer.streams.values())


def _run_task(self: TrioManager, function: Any, *arguments: Any, **options: Any) -> None:
    # In the library, an exception in a task of a service (a key that does not parse, a validator, a
    # muxer) ends the service, and with it the node. Here it ends the task, and the connection that the
    # task belongs to, if any.
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
        log.info("a task of the library could not be started: %s", name)


def _ignore_record(message: Any, host: Any, peer: Any) -> bool:
    # The library verifies and stores the signed peer record that comes with a message, twice per
    # message. A record of 100,000 addresses takes seconds, and a message whose record is older than the
    # last one is dropped: a peer whose clock was once ahead would be ignored from then on. We need no
    # such record: the connection authenticates the peer, and `introductions` provides its addresses.
    return True


def _rpc_queue_init(self: RpcQueue, *arguments: Any, **options: Any) -> None:
    # The library queues 32 messages per peer and drops further ones: fewer than one round of votes.
    ORIGINALS["RpcQueue.__init__"](self, *arguments, **options)
    self._queue = SendQueue()


async def _new_stream(self: Swarm, peer: Any) -> Any:
    # The library would dial a peer that has disconnected, at any address it once named, for minutes;
    # this node dials only on purpose.
    if not self.get_connections(peer):
        raise SwarmException(f"not connected to {peer}")
    return await ORIGINALS["Swarm.new_stream"](self, peer)


async def _inbound_connection(self: Swarm, stream: Any, address: Any) -> None:
    # The library frees an inbound connection's slot when the host ends rather than when the connection
    # does: after `max_connections` visitors a host accepts no more. And a stranger that opens as many
    # connections and sends nothing locks all others out for six seconds at a time.
    limit: HandshakeLimit = vars(self).setdefault(HANDSHAKE_LIMIT_ATTRIBUTE, HandshakeLimit())
    remote = stream.get_remote_address()
    connection = RawConnection(stream, False)
    handshake = open_scope()
    finish_handshake = limit.enter(remote[0] if remote else "", handshake.cancel)
    muxed: Any = None
    try:
        try:
            with handshake:
                muxed = await self.upgrade_inbound_raw_conn(connection, address)
        finally:
            finish_handshake()
        if muxed is not None:
            await muxed.event_closed.wait()
    except Exception as error:
        log.debug("an inbound connection failed: %r", error)
    finally:
        with shielded(2):
            await connection.close()


async def read_exactly(reader: Any, n: int, retry_count: int = 0) -> bytes:
    """Read `n` bytes in any number of pieces; the library's version gives up after 101.

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


def _route_library_logs() -> None:
    """Route libp2p's warnings into the program's log instead of the terminal."""
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
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # Without this filter, a traceback is logged ten times a second for as long as the process has no
    # free descriptor.
    logging.getLogger("trio.serve_listeners").addFilter(Seldom())
    # This module logs through the root logger, and its first call would install a handler that prints on
    # the terminal.
    module: Any = libp2p.network.connection.swarm_connection
    module.logging = logging.getLogger(module.__name__)


_SAVES_CPU = "ours: costs processor time and nothing else"
_POLICY = "ours: our own policy"
_READERS = (
    libp2p.io.utils,
    libp2p.io.msgio,
    libp2p.stream_muxer.yamux.yamux,
    libp2p.utils.varint,
)


PATCHES = (
    LibraryPatch(
        TrioManager,
        "run_task",
        _run_task,
        "an exception in any task of a service ends the service, and with it the node",
        "ours: a service of ours must not end, whatever the next fault is",
    ),
    LibraryPatch(
        BasicHost,
        "_swarm_stream_handler",
        _stream_handler,
        "an exception in a stream handler ends the host (ours for good: a peer may open any number "
        "of streams, and one that it never ends is kept, with all it sends there)",
        "raising_handler",
    ),
    LibraryPatch(
        Swarm,
        "_handle_inbound_connection",
        _inbound_connection,
        "an inbound connection's slot is freed only when the host ends; silent peers hold "
        "all of them",
        "inbound_slots",
    ),
    LibraryPatch(
        Swarm,
        "new_stream",
        _new_stream,
        "opening a stream to a disconnected peer dials it",
        f"{_POLICY}: only our own code dials",
    ),
    LibraryPatch(
        libp2p.pubsub.pubsub,
        "maybe_consume_signed_record",
        _ignore_record,
        "a message of a peer whose clock was ahead is dropped; a record of 100,000 "
        "addresses takes seconds for every message",
        "clock_ahead",
    ),
    LibraryPatch(
        RpcQueue,
        "__init__",
        _rpc_queue_init,
        "a peer's queue holds 32 messages, and further ones are dropped",
        f"{_POLICY}: all votes of a round arrive at once; bounded in bytes too",
    ),
    LibraryPatch(
        Yamux,
        "__init__",
        _yamux_init,
        "a write that is cancelled halfway breaks the connection; a peer that exceeds its "
        "window fills the memory",
        "cancelled_write, ignored_window",
    ),
    LibraryPatch(
        YamuxStream,
        "reset",
        _reset,
        "received data stays in memory for a minute after a stream's reset; a reset that is "
        "cancelled while it waits for the connection is never sent",
        "kept_after_reset, lost_reset",
    ),
    *(
        LibraryPatch(
            YamuxStream,
            name,
            NotifyingAttribute(name),
            "a writer without credit polls for it a hundred times a second",
            "polled_credit",
        )
        for name in ("send_window", "closed", "send_closed")
    ),
    LibraryPatch(
        YamuxStream,
        "_auto_tune_and_send_window_update",
        grant_credit,
        "a window update goes out after every read",
        "credit_for_every_read",
    ),
    *(
        LibraryPatch(
            module,
            "read_exactly",
            read_exactly,
            "a message that arrives in more than 101 pieces is dropped",
            "impatient_reader",
        )
        for module in _READERS
    ),
    LibraryPatch(
        TrioTCPStream,
        "read",
        read_gathered,
        "a system call for every packet, and two for every message",
        _SAVES_CPU,
    ),
    LibraryPatch(
        TrioTCPStream,
        "get_remote_address",
        remote_address,
        "a connection over IPv6 has no remote address",
        "unknown_ipv6_remote",
    ),
    LibraryPatch(
        libp2p.transport.tcp.tcp,
        "_set_reuse_flags",
        share_port,
        "whether a listener at `::` also accepts IPv4 connections depends on a system setting",
        "mixed_families",
    ),
    LibraryPatch(
        Yamux,
        "_read_data_body",
        read_body,
        "a timeout is set for data that has arrived already",
        _SAVES_CPU,
    ),
    LibraryPatch(Yamux, "_write_frame", write_frame, "a log line for every frame", _SAVES_CPU),
    LibraryPatch(
        YamuxStream,
        "read",
        read_stream,
        "three layers, each with locks and a log line",
        _SAVES_CPU,
    ),
    LibraryPatch(
        YamuxStream,
        "write",
        write_stream,
        "one and a half encrypted messages for every frame, and three locks",
        _SAVES_CPU,
    ),
    *(
        LibraryPatch(
            owner,
            "__init__",
            _init_with_eager_locks(owner, *locks),
            "acquiring a free lock lets every other task run first",
            _SAVES_CPU,
        )
        for owner, *locks in (
            (YamuxStream, "window_lock"),
            (NetStream, "_state_lock"),
            (TrioTCPStream, "read_lock", "write_lock"),
        )
    ),
)
"""All replacements."""
