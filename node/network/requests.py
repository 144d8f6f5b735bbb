"""Requests and answers between two peers, each on a stream of its own.

Both ends are bounded in bytes, time and number. A cancelled or failed request leaves neither a stream
nor a broken connection behind, and work on the answer to an abandoned request stops.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import trio
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.host.exceptions import StreamFailure
from libp2p.io.exceptions import IOException
from libp2p.network.exceptions import SwarmException
from libp2p.network.stream.exceptions import StreamError

from ...crypto.identity import PeerId, short_peer
from ...protocol.util.bounded_dict import BoundedTable
from ...protocol.wire.errors import ProtocolError
from .addresses import id_of, peer_of
from .cancel_scopes import open_scope
from .errors import NotHere, RequestError
from .flow_control import widen_window
from .negotiation import proposal, read_agreement
from .rate_limits import Rate
from .streams import (
    MAX_REASON_BYTES,
    Flow,
    FlowBroken,
    FrameOversized,
    ReplyStatus,
    StreamEnded,
    StreamIdle,
    finish,
    read_frame,
    read_reply,
    reset,
    wait_for_reset,
    write_flow,
    write_frame,
)
from .traffic import Traffic
from .upload_priority import Priority, UploadPriorities

log = logging.getLogger(__name__)

Handler = Callable[[PeerId, bytes], Awaitable[bytes | Flow]]
"""(peer, request) → the answer, as bytes or as a `Flow` whose bytes may still be arriving at this
node."""
Kind = str | Callable[[bytes], str]
"""The traffic class of the bytes, or a function that derives it from the request."""

# Timeouts for receiving a request, and for the handler, in seconds.
_REQUEST_SECONDS = 20.0
_HANDLER_SECONDS = 60.0
# The timeout for sending a reply is `_REPLY_SECONDS` plus the time that it takes at this rate (64
# kbit/s). A slower reader would occupy an upload slot for too long.
_SLOWEST_BYTES_PER_SECOND = 8_000
_REPLY_SECONDS = 30.0
# Peers and protocols that are remembered: a dozen protocols of some hundred peers.
_MAX_AGREED = 4096
# Traffic that a round waits for.
_URGENT = frozenset({"update", "relayed"})
_INTERRUPTIONS = (StreamIdle, StreamEnded, StreamError, IOException, trio.TooSlowError, FlowBroken)


class Requests:
    """The requests of one node, in both directions."""

    def __init__(
        self,
        host: BasicHost,
        nursery: trio.Nursery,
        traffic: Traffic,
        connected: Callable[[], frozenset[PeerId]],
        refuses: Callable[[PeerId], bool],
        penalise: Callable[[PeerId, str], None],
    ) -> None:
        self._host = host
        self._nursery = nursery
        self._traffic = traffic
        self._connected = connected
        self._refuses = refuses
        self._penalise = penalise
        self._priorities = UploadPriorities(traffic.upload)
        # Protocols on which peers have agreed.
        self._agreed: BoundedTable[tuple[PeerId, str], bool] = BoundedTable(_MAX_AGREED)

    def serve(
        self,
        protocol: str,
        handler: Handler,
        *,
        max_request: int,
        max_concurrent: int,
        max_per_peer: int | None = None,
        is_prioritised: Callable[[PeerId], bool] = lambda peer: False,
        kind: Kind = "other",
    ) -> None:
        """Answer requests on a protocol, at most `max_concurrent` per traffic class at a time.

        One peer gets at most half of that, or `max_per_peer`; further requests are answered "busy". A
        `ProtocolError` from the handler refuses the request and penalises the peer, `NotHere` only
        refuses it; any other exception is our bug: logged, counted, and answered with a failure. `kind`
        is the traffic class. Peers for which `is_prioritised` is true are served beyond `max_concurrent`
        as well.
        """
        # One peer must not be able to lock out all others.
        per_peer = (max_concurrent + 1) // 2 if max_per_peer is None else max_per_peer
        # Counted by traffic class, so that newcomers that fetch snapshots cannot keep members from a
        # round's updates.
        slots: dict[str, Counter[PeerId]] = {}

        async def handle(stream: Any) -> None:
            peer = peer_of(stream.muxed_conn.peer_id)
            if peer is None or self._refuses(peer):
                await reset(stream)
                return
            finished = False
            try:
                with trio.fail_after(_REQUEST_SECONDS):
                    request = await read_frame(
                        stream, max_request, _REQUEST_SECONDS, rate=self._traffic.download
                    )
                with self._while_wanted(stream):
                    label = kind if isinstance(kind, str) else kind(request)
                    self._traffic.count_received(label, len(request))
                    active = slots.setdefault(label, Counter())
                    limit = max_concurrent + (per_peer if is_prioritised(peer) else 0)
                    if active.total() >= limit or active[peer] >= per_peer:
                        self._traffic.reject("busy")
                        await self._reply(stream, ReplyStatus.BUSY, b"")
                    else:
                        active[peer] += 1
                        try:
                            status, response = await self._answer(protocol, handler, peer, request)
                            await self._reply(stream, status, response, label)
                        finally:
                            active[peer] -= 1
                            if not active[peer]:
                                del active[peer]
                    finished = True
            except FrameOversized:
                self._traffic.reject("oversized")
                self._penalise(peer, "oversized")
            except _INTERRUPTIONS as error:
                # The peer gave up or disconnected. This is allowed, and often means that a second
                # provider was faster.
                log.debug("a request from %s was interrupted: %r", short_peer(peer), error)
            finally:
                if not finished:
                    await reset(stream)

        self._host.set_stream_handler(TProtocol(protocol), handle)

    async def request(
        self,
        peer: PeerId,
        protocol: str,
        request: bytes,
        *,
        max_response: int,
        timeout: float,
        idle_timeout: float = 10.0,
        kind: str = "other",
        progress: Callable[[int], None] | None = None,
        into: bytearray | None = None,
    ) -> bytes:
        """Send a request to a connected peer and return its answer, of at most `max_response` bytes.

        `timeout` bounds the whole exchange, `idle_timeout` the silence between two pieces of the answer,
        both in seconds. `progress` is called with the number of bytes received so far; they are
        collected in `into`, if it is given. Raises `RequestError` for any failure, with its reason.
        """
        if peer not in self._connected():
            raise RequestError("not_connected", short_peer(peer))
        stream: Any = None
        finished = False
        received = 0

        def note(size: int) -> None:
            nonlocal received
            received = size
            if progress is not None:
                progress(size)

        # Only a peer that has once agreed on the protocol is sent the request with it: one that does not
        # have it resets the stream when it reads the request, and its refusal is lost.
        known = (peer, protocol) in self._agreed
        try:
            with trio.fail_after(timeout):
                opener = self._open_unnegotiated if known else self._open_negotiated
                stream = await self._open(peer, protocol, opener)
                await widen_window(stream, max_response)
                first = proposal(protocol) if known else b""
                await write_frame(stream, request, first, self._traffic.upload)
                await stream.close_write()
                self._traffic.count_sent(kind, len(request))
                if known and not await read_agreement(stream, protocol, idle_timeout):
                    raise RequestError("refused", f"{short_peer(peer)} has no {protocol}")
                self._agreed[peer, protocol] = True
                status, response = await read_reply(
                    stream, max_response, idle_timeout, note, self._traffic.download, into
                )
                # Both sides have sent everything; this releases the stream.
                await stream.close()
                finished = True
                if not stream.muxed_stream.closed:
                    self._nursery.start_soon(finish, stream)
        except trio.TooSlowError:
            raise RequestError("timeout", f"no complete answer in {timeout:g} s") from None
        except StreamIdle as error:
            raise RequestError("timeout", str(error)) from None
        except FrameOversized as error:
            raise RequestError("oversized", str(error)) from None
        except ValueError:
            raise RequestError("refused", f"{protocol} answered with an unknown status") from None
        except (StreamEnded, StreamError, IOException, SwarmException) as error:
            raise RequestError("closed", str(error) or type(error).__name__) from None
        finally:
            # Also of an answer that breaks off.
            self._traffic.count_received(kind, received)
            if not finished:
                self._agreed.pop((peer, protocol), None)
                if stream is not None:
                    await reset(stream)
        if status is ReplyStatus.OK:
            return response
        if status is ReplyStatus.BUSY:
            raise RequestError("busy", short_peer(peer))
        if status is ReplyStatus.REFUSED:
            reason = response.decode("ascii", "replace")
            raise RequestError("refused", f"{short_peer(peer)} refuses: {reason}")
        raise RequestError("failed", f"{short_peer(peer)} reports an internal failure")

    @contextmanager
    def _while_wanted(self, stream: Any) -> Iterator[None]:
        """Cancel the body when the asker gives up or disconnects.

        Otherwise work for a request that was reset would hold a slot until it is done: an asker that
        gives up at once and asks again could lock out all others at almost no cost.
        """
        watching = open_scope()
        with open_scope() as wanted:

            async def watch() -> None:
                with watching:
                    if await wait_for_reset(stream):
                        wanted.cancel()

            self._nursery.start_soon(watch)
            try:
                yield
            finally:
                watching.cancel()

    async def _answer(
        self, protocol: str, handler: Handler, peer: PeerId, request: bytes
    ) -> tuple[ReplyStatus, bytes | Flow]:
        try:
            with trio.fail_after(_HANDLER_SECONDS):
                return ReplyStatus.OK, await handler(peer, request)
        except ProtocolError as error:
            self._traffic.reject(error.reason)
            self._penalise(peer, error.reason)
            return ReplyStatus.REFUSED, error.reason.encode()[:MAX_REASON_BYTES]
        except NotHere:
            return ReplyStatus.REFUSED, b"not_here"
        except OSError as error:
            # For example a full disk: the node's own next write there ends the node, with a message that
            # names the remedy.
            log.warning("the handler of %s failed: %s", protocol, error.strerror or error)
            self._traffic.fail(protocol)
            return ReplyStatus.FAILED, b""
        except Exception:
            log.exception("the handler of %s failed", protocol)
            self._traffic.fail(protocol)
            return ReplyStatus.FAILED, b""

    async def _reply(
        self, stream: Any, status: ReplyStatus, response: bytes | Flow, kind: str = "other"
    ) -> None:
        with trio.fail_after(_REPLY_SECONDS + _size(response) / _SLOWEST_BYTES_PER_SECOND):
            count = partial(self._traffic.count_sent, kind)
            with self._priority(kind, stream) as priority:
                if isinstance(response, bytes):
                    await write_frame(stream, response, bytes([status]), priority, count)
                else:
                    await write_flow(stream, response, bytes([status]), priority, count)
            # Done after the priority has been released, since closing may wait for the other end while
            # the line is free.
            await stream.close()

    def _priority(self, kind: str, stream: Any) -> AbstractContextManager[Priority | Rate]:
        if kind in _URGENT:
            return self._priorities.urgent(stream.muxed_conn)
        # Ledgers and records are small, and a peer may be waiting for them.
        if kind != "blob":
            return nullcontext(self._traffic.upload)
        return nullcontext(self._priorities.bulk(stream.muxed_conn))

    async def open_stream(self, peer: PeerId, protocol: str) -> Any:
        """Open a stream to a connected peer, which agrees on the protocol. Raises `RequestError` if that
        fails. The library bounds the time."""
        return await self._open(peer, protocol, self._open_negotiated)

    async def _open_negotiated(self, peer: PeerId, protocol: str) -> Any:
        return await self._host.new_stream(id_of(peer), [TProtocol(protocol)])

    async def _open_unnegotiated(self, peer: PeerId, protocol: str) -> Any:
        stream = await self._host.get_network().new_stream(id_of(peer))
        stream.set_protocol(TProtocol(protocol))
        return stream

    async def _open(self, peer: PeerId, protocol: str, opener: _Opener) -> Any:
        # Opening runs in a task of its own: if it were cancelled halfway, the library would lose track
        # of the stream, which would stay open as long as the connection.
        opening = _Opening()
        self._nursery.start_soon(self._run_opening, opening, peer, protocol, opener)
        try:
            await opening.done.wait()
        except trio.Cancelled:
            opening.abandoned = True
            if opening.stream is not None:
                await reset(opening.stream)
            raise
        if opening.stream is None:
            raise opening.error
        return opening.stream

    async def _run_opening(
        self, opening: _Opening, peer: PeerId, protocol: str, opener: _Opener
    ) -> None:
        try:
            stream = await opener(peer, protocol)
            if opening.abandoned:
                await reset(stream)
            else:
                opening.stream = stream
        except StreamFailure as error:
            if "protocols not supported" in str(error.__cause__):
                opening.error = RequestError("refused", f"{short_peer(peer)} has no {protocol}")
        except Exception as error:
            opening.error = RequestError("closed", str(error) or type(error).__name__)
        finally:
            opening.done.set()


def _size(response: bytes | Flow) -> int:
    return len(response) if isinstance(response, bytes) else response.size


_Opener = Callable[[PeerId, str], Awaitable[Any]]


class _Opening:
    """A stream that a task of its own is opening, or has opened."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.abandoned = False
        self.stream: Any = None
        self.error = RequestError("closed", "the stream could not be opened")
