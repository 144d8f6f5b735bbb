"""The page's server: whatever a client sends or does not send, it costs little, and others are
served."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import h11
import pytest
import trio
import trio.testing
from dashboard.support import PATIENCE_SECONDS, read_all, read_reply, served
from distro_node.node.dashboard import http
from distro_node.node.dashboard.http import Bounds, HttpServer, Request, Response, Send

# Private here: `_address`: a test has no IPv6 addresses of other households.

HOST = b"Host: 127.0.0.1:%d\r\n"


async def test_requests_follow_each_other_on_a_connection() -> None:
    async with served() as page, await page.connect() as stream:
        client = h11.Connection(h11.CLIENT)
        for path in ("/", "/app.js", "/api/status"):
            host = [("Host", f"localhost:{page.port}")]
            data = client.send(h11.Request(method="GET", target=path, headers=host))
            await stream.send_all((data or b"") + (client.send(h11.EndOfMessage()) or b""))
            assert (await read_reply(stream, client)).status == 200
            client.start_next_cycle()


async def test_a_head_without_a_body() -> None:
    async with served() as page:
        whole, head = await page.ask("/"), await page.ask("/", method="HEAD")
        assert whole.headers["content-length"] == head.headers["content-length"]
        assert whole.body
        assert not head.body


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 40_000 + b"\r\n\r\n", b"431"),
        (b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", b"431"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n\r\n", b"400"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 9\r\nContent-Length: 8\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5000\r\n\r\n" + b"x" * 5000, b"413"),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip\r\n\r\n", b"501"),
    ],
    ids=["header", "target", "tls", "ssh", "no host", "two lengths", "long body", "encoding"],
)
async def test_what_is_no_request_is_refused(said: bytes, status: bytes) -> None:
    async with served() as page, await page.connect() as stream:
        await stream.send_all(said.replace(b"%d", b"%d" % page.port))
        answer = await read_all(stream)
        assert answer.startswith(b"HTTP/1.1 " + status), answer[:100]
        assert (await page.ask("/")).status == 200


@pytest.mark.parametrize("said", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n"])
async def test_who_sends_nothing_or_stops_in_the_middle_is_disconnected(said: bytes) -> None:
    bounds = Bounds(idle_seconds=0.2, request_seconds=0.2)
    async with served(bounds=bounds) as page, await page.connect() as stream:
        if said:
            await stream.send_all(said)
        assert await read_all(stream) == b""


async def test_a_request_that_trickles_in_has_no_longer_than_one_that_stops() -> None:
    async with served(bounds=Bounds(request_seconds=0.5)) as page, await page.connect() as stream:
        sent = 0
        with trio.fail_after(60), contextlib.suppress(trio.BrokenResourceError):
            while True:
                await stream.send_all(b"G")
                await trio.sleep(0.1)
                sent += 1
        assert sent >= 2


async def test_connections_on_which_nobody_asks_make_room() -> None:
    async with served(bounds=Bounds(connections=4)) as page, trio.open_nursery() as nursery:
        idle = [await page.connect() for _ in range(4)]
        for _ in range(6):
            assert (await page.ask("/")).status == 200
        # The one that had waited longest.
        assert await read_all(idle[0]) == b""
        nursery.cancel_scope.cancel()
    for stream in idle:
        await trio.aclose_forcefully(stream)


async def test_when_all_places_are_taken_a_newcomer_is_turned_away_and_a_place_comes_back() -> None:
    async with served(bounds=Bounds(connections=3)) as page:
        streams = []
        for _ in range(3):
            stream = await page.connect()
            await stream.send_all(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await stream.receive_some(100)).startswith(b"HTTP/1.1 200")
            streams.append(stream)
        async with await page.connect() as late:
            assert await read_all(late) == b""
        await trio.aclose_forcefully(streams.pop())
        with trio.fail_after(60):
            while True:
                try:
                    reply = await page.ask("/")
                    break
                except (trio.BrokenResourceError, h11.RemoteProtocolError):
                    await trio.sleep(0.05)
        assert reply.status == 200
        for stream in streams:
            await trio.aclose_forcefully(stream)


async def test_a_household_occupies_a_part_of_the_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """A home in IPv6 has any number of addresses in one /64."""
    hosts = ["2001:db8:1:1::1", "2001:db8:1:1::2", "2001:db8:1:1:ffff::3", "2001:db8:1:2::1"]
    monkeypatch.setattr(http, "_address", lambda stream: hosts.pop(0))
    async with served(bounds=Bounds(per_household=2)) as page, AsyncExitStack() as stack:
        opened = []
        for _ in range(4):
            stream = await stack.enter_async_context(await page.connect())
            await stream.send_all(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
            opened.append(await read_start(stream))
    assert opened == [True, True, False, True]


async def read_start(stream: trio.SocketStream) -> bool:
    """Return whether a stream is answered, and not closed."""
    with trio.fail_after(PATIENCE_SECONDS):
        try:
            return (await stream.receive_some(100)).startswith(b"HTTP/1.1 200")
        except trio.BrokenResourceError:
            return False


async def test_a_reader_that_does_not_read_loses_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served(bounds=Bounds(send_seconds=0.3)) as page, await page.connect() as stream:
        # More than the system's buffers between the two hold.
        status, pieces = page.feed.status(), 0
        monkeypatch.setattr(page.feed, "status", lambda: status + b" " * (8 << 20))
        await stream.send_all(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with trio.fail_after(60):
            while page.feed.full or page.feed.streams or not pieces:
                pieces += page.feed.streams
                await trio.sleep(0.05)
        assert pieces
        received = await read_all(stream)
        assert len(received) < len(status) + (8 << 20)


async def test_the_news_come_each_second_and_a_stream_ends_with_its_reader() -> None:
    async with served() as page:
        async with await page.connect() as stream:
            await stream.send_all(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
            received = b""
            with trio.fail_after(60):
                while received.count(b"event: status\n") < 3:
                    received += await stream.receive_some(65536)
            assert b"content-type: text/event-stream" in received.lower()
            data = received.split(b"event: status\ndata: ")[1].partition(b"\n\n")[0]
            assert json.loads(data)["status"]["state"] == "training"
            assert page.feed.streams == 1
        with trio.fail_after(60):
            while page.feed.streams:  # noqa: ASYNC110  (a number without an event)
                await trio.sleep(0.01)


async def test_so_many_streams_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distro_node.node.dashboard.event_stream.MAX_STREAMS", 0)
    async with served() as page:
        assert (await page.ask("/api/stream")).status == 503
        assert (await page.ask("/api/status")).status == 200


async def test_nobody_looks_and_nothing_is_read() -> None:
    opened = []
    async with served(lambda: opened.append(1)) as page:
        await trio.testing.wait_all_tasks_blocked()
        assert not opened
        assert (await page.ask("/api/rounds")).json is None
        assert opened == [1]


async def test_a_bug_in_an_answer_costs_the_connection_and_not_the_node(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with served() as page:
        with monkeypatch.context() as patch:
            patch.setattr(page.feed, "status", lambda: 1 / 0)
            async with await page.connect() as stream:
                await stream.send_all(b"GET /api/status HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert await read_all(stream) == b""
        assert "ZeroDivisionError" in caplog.text
        assert (await page.ask("/api/status")).status == 200


async def test_what_breaks_off_in_the_middle_of_asking_for_a_head_is_hung_up_on() -> None:
    """The response to HEAD has no body, and a refusal's text would be one."""
    async with served() as page:
        for method, words in ((b"HEAD", b""), (b"POST", b"this is not a request")):
            stream = await page.connect()
            async with stream:
                host = b"Host: 127.0.0.1:%d\r\n" % page.port
                await stream.send_all(
                    method + b" / HTTP/1.1\r\n" + host + b"Content-Length: 9\r\n\r\nhalf"
                )
                await stream.send_eof()
                received = await read_all(stream)
            assert words in received
            assert bool(received) == bool(words)


async def test_a_client_that_hangs_up_ends_the_work_on_its_answer_if_that_is_wanted() -> None:
    ended, closed = trio.Event(), trio.Event()

    async def work(request: Request) -> Response:
        if request.path == "/quick":
            return Response(body=b"done", close=closed.set)
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        await nursery.start(HttpServer(work, abandons=True).run, listeners)
        head = b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(b"GET /long" + head)
        with trio.fail_after(PATIENCE_SECONDS):
            await ended.wait()
        # Requests that are sent before the answer to the first one are answered in turn.
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(2 * (b"GET /quick" + head))
            received = b""
            with trio.fail_after(PATIENCE_SECONDS):
                while received.count(b"done") < 2:
                    part = await stream.receive_some(4096)
                    assert part
                    received += part
        assert closed.is_set()
        nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def streamed(
    pieces: Callable[[Send], Awaitable[None]],
) -> AsyncIterator[trio.SocketStream]:
    """Yield a connection on which a streamed answer has been asked for."""

    async def answer(_: Request) -> Response:
        return Response(stream=pieces)

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        await nursery.start(HttpServer(answer).run, listeners)
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            yield stream
        nursery.cancel_scope.cancel()


async def test_a_stream_that_ends_is_complete() -> None:
    async def pieces(send: Send) -> None:
        await send(b"one ")
        await send(b"two")

    async with streamed(pieces) as stream:
        received = await read_all(stream)
    # The last chunk says that nothing is missing.
    assert received.endswith(b"\r\n0\r\n\r\n")


async def test_a_client_that_sends_more_gets_its_stream_to_the_end() -> None:
    """Some send a line's end after a body, or the next request at once."""
    go_on = trio.Event()

    async def pieces(send: Send) -> None:
        await send(b"one ")
        await go_on.wait()
        await send(b"two")

    async with streamed(pieces) as stream:
        received = b""
        while b"one" not in received:
            received += await stream.receive_some(4096)
        await stream.send_all(b"\r\n")
        await trio.testing.wait_all_tasks_blocked(0.1)
        go_on.set()
        received += await read_all(stream)
    assert received.endswith(b"\r\n0\r\n\r\n")
