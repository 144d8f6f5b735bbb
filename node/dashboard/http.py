"""A small HTTP/1.1 server on trio: h11 parses the protocol; all buffers and waits here are bounded.

Any process may connect: another user of this machine, a stranger's page in the owner's own browser.
Therefore the number of open connections is limited, a request is limited in time and bytes, and a client
that reads too slowly is disconnected. At the limit, the connection that has been idle for longest is
closed for a new one.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING

import h11
import trio

if TYPE_CHECKING:
    from trio_typing import TaskStatus

_log = logging.getLogger(__name__)

Send = Callable[[bytes], Awaitable[None]]
"""Sends a piece of a streamed response. Raises what trio's `send_all` raises, or `_TooSlow` for a client
that reads too slowly."""

_READ_BYTES = 4 * 1024
# Bytes sent at once. A client that takes longer than `Bounds.send_seconds` for them reads too slowly.
_PIECE_BYTES = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Limits on the resources that strangers can use."""

    connections: int = 96
    """Connections open at once. A page has up to six, a browser's own limit per host."""
    per_household: int = 24
    """Connections open at once per IPv4 address or IPv6 /64, unless it is this machine's own. Fewer than
    the event streams of a page (`event_stream.MAX_STREAMS`), so that one household can't occupy all."""
    head_bytes: int = 16 * 1024
    """Size of a request's first line and headers; browsers send about 1 KiB."""
    body_bytes: int = 4 * 1024
    """Size of a request's body: a command with a few parameters."""
    request_seconds: float = 10.0
    """Time from a request's first byte to its last; also time for the TLS handshake."""
    idle_seconds: float = 30.0
    """Time between two requests of a connection."""
    send_seconds: float = 20.0
    """Time to send a piece of a response, which has at most 64 KiB."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A complete request."""

    method: str
    path: str
    """The path without the query."""
    headers: Mapping[str, str]
    """Values of the headers that occur once, by lower-case name."""
    repeated: frozenset[str] = frozenset()
    """Names of the headers that occur more than once."""
    body: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Response:
    """A response with a fixed `body`, or with what `stream` sends until it returns or the client
    disconnects."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    stream: Callable[[Send], Awaitable[None]] | None = None
    close: Callable[[], None] | None = None
    """Called once the response is sent, or cannot be sent."""


Answer = Callable[[Request], Awaitable[Response]]
Refusal = Callable[[int, str], Response]
"""Makes the response to something that is no valid request, from a status and a line of text."""


def text_response(status: int, text: str) -> Response:
    """Return a response with a line of text."""
    headers = {"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store"}
    return Response(status=status, headers=headers, body=f"{text}\n".encode())


class _TooSlow(Exception):
    """The client took longer than the bounds allow."""


# Raised when the client has disconnected, does not speak TLS, or exceeds the bounds.
_CONNECTION_ERRORS = (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError, _TooSlow)


class HttpServer:
    """Answers requests with `answer`, over TLS if a context is given."""

    def __init__(
        self,
        answer: Answer,
        *,
        bounds: Bounds | None = None,
        tls: ssl.SSLContext | None = None,
        refusal: Refusal = text_response,
        abandons: bool = False,
    ) -> None:
        """`abandons`: whether to cancel `answer` if the client disconnects before the response. Watching
        for that takes a trio task per request, which short answers are not worth."""
        self._answer = answer
        self._refusal, self._abandons = refusal, abandons
        self._bounds = bounds or Bounds()
        self._tls = tls
        self._open = 0
        self._by_household: Counter[str] = Counter()
        # The connections that wait for a request, in the order in which they began to wait.
        self._idle: dict[trio.CancelScope, None] = {}

    async def run(
        self,
        listeners: Sequence[trio.SocketListener],
        *,
        task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until cancelled. The listeners are closed at the end."""
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, self.serve_connection, [*listeners])
            task_status.started()

    async def serve_connection(self, stream: trio.SocketStream) -> None:
        """Serve one client until it disconnects or exceeds the bounds."""
        address = _address(stream)
        is_local, household = _is_this_machine(address), _household(address)
        if self._open >= self._bounds.connections and self._idle:
            longest = next(iter(self._idle))
            del self._idle[longest]
            longest.cancel()
            # The cancelled task has ended after two rounds of the scheduler.
            for _ in range(2):
                await trio.lowlevel.checkpoint()
        full = self._open >= self._bounds.connections
        crowded = self._by_household[household] >= self._bounds.per_household
        if full or (crowded and not is_local):
            await trio.aclose_forcefully(stream)
            return
        self._open += 1
        self._by_household[household] += 1
        try:
            with contextlib.suppress(*_CONNECTION_ERRORS):
                await self.serve_stream(stream)
        except Exception:
            # A fault in one request must not end the node.
            _log.exception("a request to the page failed")
        finally:
            self._open -= 1
            self._by_household[household] -= 1
            if not self._by_household[household]:
                del self._by_household[household]
            await trio.aclose_forcefully(stream)

    async def serve_stream(self, raw: trio.abc.Stream) -> None:
        """Answer the requests on a stream while they stay within the bounds.

        Raises one of `_CONNECTION_ERRORS` once the client has disconnected or exceeds the bounds.
        """
        stream = raw
        if self._tls is not None:
            secure = trio.SSLStream(raw, self._tls, server_side=True, https_compatible=True)
            with _time_limit(self._bounds.request_seconds):
                await secure.do_handshake()
            stream = secure
        connection = h11.Connection(h11.SERVER, self._bounds.head_bytes)
        try:
            while (request := await self._read(stream, connection)) is not None:
                response = await self._response(stream, connection, request)
                try:
                    await self._reply(stream, connection, request, response)
                finally:
                    if response.close is not None:
                        response.close()
                if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                    return
                connection.start_next_cycle()
        except h11.RemoteProtocolError as error:
            if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                text = "this is not a request that a browser would send"
                if error.error_status_hint == 413:
                    text = f"a request's body has at most {self._bounds.body_bytes:,} bytes"
                refusal = self._refusal(error.error_status_hint, text)
                await self._reply(stream, connection, None, refusal)

    async def _response(
        self, stream: trio.abc.Stream, connection: h11.Connection, request: Request
    ) -> Response:
        """Return the response to a request. Raises one of `_CONNECTION_ERRORS` if the client disconnects
        or sends too much meanwhile (only with `abandons`)."""
        if not self._abandons:
            return await self._answer(request)
        response: Response | None = None
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                # What arrives meanwhile belongs to the next requests of a client that does not wait.
                received = 0
                with contextlib.suppress(*_CONNECTION_ERRORS):
                    while received <= self._bounds.head_bytes:
                        data = await stream.receive_some(_READ_BYTES)
                        if not data:
                            break
                        received += len(data)
                        connection.receive_data(data)
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            response = await self._answer(request)
            nursery.cancel_scope.cancel()
        if response is None:
            raise trio.BrokenResourceError("the client has disconnected")
        return response

    async def _read(self, stream: trio.abc.Stream, connection: h11.Connection) -> Request | None:
        """Return the next request; None at the end of the connection."""
        head: h11.Request | None = None
        body = bytearray()
        with trio.move_on_after(self._bounds.idle_seconds) as waiting:
            self._idle[waiting] = None
            try:
                while (event := connection.next_event()) is h11.NEED_DATA:
                    received = await stream.receive_some(_READ_BYTES)
                    if waiting in self._idle:
                        # A request has begun, so the connection is not idle any more.
                        del self._idle[waiting]
                        waiting.deadline = trio.current_time() + self._bounds.request_seconds
                    connection.receive_data(received)
                while True:
                    if isinstance(event, h11.Request):
                        head = event
                        if connection.they_are_waiting_for_100_continue:
                            go_on = h11.InformationalResponse(status_code=100, headers=[])
                            await stream.send_all(connection.send(go_on) or b"")
                    elif isinstance(event, h11.Data):
                        body += event.data
                        if len(body) > self._bounds.body_bytes:
                            raise h11.RemoteProtocolError("too long", error_status_hint=413)
                    elif isinstance(event, h11.EndOfMessage) and head is not None:
                        return _request(head, bytes(body))
                    elif event is h11.NEED_DATA:
                        connection.receive_data(await stream.receive_some(_READ_BYTES))
                    else:
                        return None
                    event = connection.next_event()
            except h11.RemoteProtocolError:
                if head is not None and head.method == b"HEAD":
                    # The response to HEAD has no body in which to give a reason.
                    return None
                raise
            finally:
                self._idle.pop(waiting, None)
        # Timed out, or cancelled to make room for another connection.
        raise _TooSlow

    async def _reply(
        self,
        stream: trio.abc.Stream,
        connection: h11.Connection,
        request: Request | None,
        response: Response,
    ) -> None:
        async def send(event: h11.Event) -> None:
            data = connection.send(event) or b""
            for start in range(0, len(data), _PIECE_BYTES):
                with _time_limit(self._bounds.send_seconds):
                    await stream.send_all(memoryview(data)[start : start + _PIECE_BYTES])

        async def piece(data: bytes) -> None:
            await send(h11.Data(data=data))

        headers = [*response.headers.items()]
        if response.stream is None:
            headers.append(("Content-Length", str(len(response.body))))
        else:
            headers.append(("Connection", "close"))
        reason = HTTPStatus(response.status).phrase.encode()
        await send(h11.Response(status_code=response.status, headers=headers, reason=reason))
        if response.stream is not None:
            async with trio.open_nursery() as nursery:

                async def watch() -> None:
                    # The connection is closed after a stream: what the client sends meanwhile has no
                    # answer.
                    received = 0
                    with contextlib.suppress(*_CONNECTION_ERRORS):
                        while received <= self._bounds.head_bytes:
                            data = await stream.receive_some(_READ_BYTES)
                            if not data:
                                break
                            received += len(data)
                    nursery.cancel_scope.cancel()

                nursery.start_soon(watch)
                with contextlib.suppress(*_CONNECTION_ERRORS):
                    await response.stream(piece)
                    await send(h11.EndOfMessage())
                nursery.cancel_scope.cancel()
            return
        if request is None or request.method != "HEAD":
            await piece(response.body)
        await send(h11.EndOfMessage())


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    with trio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise _TooSlow


def _request(head: h11.Request, body: bytes) -> Request:
    headers: dict[str, str] = {}
    repeated: set[str] = set()
    for raw, value in head.headers:
        name = raw.decode("ascii")
        if name in headers:
            repeated.add(name)
        headers[name] = value.decode("latin-1")
    return Request(
        method=head.method.decode("ascii"),
        path=head.target.decode("latin-1").partition("?")[0],
        headers={name: value for name, value in headers.items() if name not in repeated},
        repeated=frozenset(repeated),
        body=body,
    )


def _address(stream: trio.SocketStream) -> str:
    try:
        return str(stream.socket.getpeername()[0])
    except (OSError, IndexError):
        # The client has disconnected already.
        return ""


def _is_this_machine(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _household(address: str) -> str:
    """Return the key of a household: an IPv4 address, or the /64 network of a home in IPv6."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    return str(ip.ipv4_mapped or ipaddress.IPv6Network((ip, 64), strict=False))
