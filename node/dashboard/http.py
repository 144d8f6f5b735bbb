"""A small HTTP/1.1 server on trio: h11 speaks the protocol; all buffers and waits here have a bound.

Whoever connects may be anybody: another user of this machine, a page in the owner's own browser. So
few connections are open at once, a request has a short time and few bytes, and who reads an answer too
slowly loses the connection. A connection on which nobody asks anything makes room for the next.
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
"""Sends a piece of an answer that goes on; raises as a stream does once nobody reads any more."""

_READ_BYTES = 4 * 1024
# Of an answer, at once: who takes it at less than this in `send_seconds` reads too slowly.
_PIECE_BYTES = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What strangers can take up."""

    connections: int = 96
    """Open at once; a page has up to six, a browser's own limit for a host."""
    per_address: int = 24
    """Of one address that is not this machine's own."""
    head_bytes: int = 16 * 1024
    """Of a request's first line and headers; browsers send about one."""
    body_bytes: int = 4 * 1024
    """Of what a request carries: a command and its few words."""
    request_seconds: float = 10.0
    """From a request's first byte to its last; for the handshake of TLS, too."""
    idle_seconds: float = 30.0
    """Between two requests."""
    send_seconds: float = 20.0
    """For each piece of an answer, 64 KiB at most."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request that came whole."""

    method: str
    path: str
    """Without what follows a question mark."""
    headers: Mapping[str, str]
    """By names in small letters. One that was given twice is not here but in `doubled`."""
    doubled: frozenset[str] = frozenset()
    body: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Response:
    """An answer: `body`, or what `stream` sends until it returns or nobody reads any more."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    stream: Callable[[Send], Awaitable[None]] | None = None


Answer = Callable[[Request], Awaitable[Response]]


def text_response(status: int, text: str) -> Response:
    """A line of text."""
    headers = {"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store"}
    return Response(status=status, headers=headers, body=f"{text}\n".encode())


class _TooSlow(Exception):
    """Somebody took longer than the bounds give."""


# It hung up, it is no TLS that it speaks, or it does not keep to the bounds.
_GONE = (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError, _TooSlow)


class HttpServer:
    """Answers requests with `answer`, over TLS if there is a context for it."""

    def __init__(
        self, answer: Answer, *, bounds: Bounds | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._answer = answer
        self._bounds = bounds or Bounds()
        self._tls = tls
        self._open = 0
        self._by_address: Counter[str] = Counter()
        # In the order in which they began to wait for a request.
        self._idle: dict[trio.CancelScope, None] = {}

    async def run(
        self,
        listeners: Sequence[trio.SocketListener],
        *,
        task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until cancelled. The listeners are closed at the end."""
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, self.attend, [*listeners])
            task_status.started()

    async def attend(self, stream: trio.SocketStream) -> None:
        """Answer who has connected, until it has had enough or did not keep to the bounds."""
        address = _address(stream)
        near = _is_this_machine(address)
        if self._open >= self._bounds.connections and self._idle:
            longest = next(iter(self._idle))
            del self._idle[longest]
            longest.cancel()
            # Its task is woken by that, and has run after two rounds of the scheduler.
            for _ in range(2):
                await trio.lowlevel.checkpoint()
        full = self._open >= self._bounds.connections
        if full or (not near and self._by_address[address] >= self._bounds.per_address):
            await trio.aclose_forcefully(stream)
            return
        self._open += 1
        self._by_address[address] += 1
        try:
            with contextlib.suppress(*_GONE):
                await self.converse(stream)
        except Exception:
            # What is wrong with one request must not end the node.
            _log.exception("a request to the page failed")
        finally:
            self._open -= 1
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]
            await trio.aclose_forcefully(stream)

    async def converse(self, raw: trio.abc.Stream) -> None:
        """Answer what is asked over a stream, as long as it keeps to the bounds.

        Raises what streams raise once nobody is at the other end.
        """
        stream = raw
        if self._tls is not None:
            secure = trio.SSLStream(raw, self._tls, server_side=True, https_compatible=True)
            with _patience(self._bounds.request_seconds):
                await secure.do_handshake()
            stream = secure
        connection = h11.Connection(h11.SERVER, self._bounds.head_bytes)
        try:
            while (request := await self._read(stream, connection)) is not None:
                await self._reply(stream, connection, request, await self._answer(request))
                if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                    return
                connection.start_next_cycle()
        except h11.RemoteProtocolError as error:
            if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                words = "this is no request that a browser would send"
                refusal = text_response(error.error_status_hint, words)
                await self._reply(stream, connection, None, refusal)

    async def _read(self, stream: trio.abc.Stream, connection: h11.Connection) -> Request | None:
        """The next request; None at the end of the connection."""
        head: h11.Request | None = None
        body = bytearray()
        with trio.move_on_after(self._bounds.idle_seconds) as waiting:
            self._idle[waiting] = None
            try:
                while (event := connection.next_event()) is h11.NEED_DATA:
                    received = await stream.receive_some(_READ_BYTES)
                    if waiting in self._idle:
                        # It has begun: from here on it is in the middle of something.
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
                    # Its answer has no body, so there is nothing to say why with.
                    return None
                raise
            finally:
                self._idle.pop(waiting, None)
        # Too late, or somebody else has its place.
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
                with _patience(self._bounds.send_seconds):
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
                    # Nobody has anything to say while a stream goes on: this is the hanging up.
                    with contextlib.suppress(*_GONE):
                        await stream.receive_some(1)
                    nursery.cancel_scope.cancel()

                nursery.start_soon(watch)
                with contextlib.suppress(*_GONE):
                    await response.stream(piece)
                nursery.cancel_scope.cancel()
            return
        if request is None or request.method != "HEAD":
            await piece(response.body)
        await send(h11.EndOfMessage())


@contextlib.contextmanager
def _patience(seconds: float) -> Iterator[None]:
    with trio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise _TooSlow


def _request(head: h11.Request, body: bytes) -> Request:
    headers: dict[str, str] = {}
    doubled: set[str] = set()
    for raw, value in head.headers:
        name = raw.decode("ascii")
        if name in headers:
            doubled.add(name)
        headers[name] = value.decode("latin-1")
    return Request(
        method=head.method.decode("ascii"),
        path=head.target.decode("latin-1").partition("?")[0],
        headers={name: value for name, value in headers.items() if name not in doubled},
        doubled=frozenset(doubled),
        body=body,
    )


def _address(stream: trio.SocketStream) -> str:
    try:
        return str(stream.socket.getpeername()[0])
    except (OSError, IndexError):
        # It has hung up already.
        return ""


def _is_this_machine(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
