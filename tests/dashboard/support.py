"""A page on loopback without a node behind it, and a client that can send anything to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import h11
import trio
from distro_node.node.dashboard.address import Address, open_address
from distro_node.node.dashboard.event_stream import EventStream
from distro_node.node.dashboard.http import Answer, Bounds, HttpServer
from distro_node.node.dashboard.routes import Routes
from distro_node.node.dashboard.run_history import RunHistory
from distro_node.node.settings.components import DashboardSettings
from distro_node.node.telemetry.status import Status
from statuses import TRAINING

PATIENCE_SECONDS = 60.0


@dataclass
class Served:
    """A page that is served, and the commands given through it."""

    address: Address
    feed: EventStream
    port: int
    status: Status = TRAINING
    done: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @property
    def token(self) -> str:
        return self.address.guard.token

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)

    async def ask(
        self,
        path: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Reply:
        """Send one request over a connection of its own."""
        stream = await self.connect()
        async with stream:
            said = {"Host": f"127.0.0.1:{self.port}", **(headers or {})}
            if body:
                said["Content-Length"] = str(len(body))
            sent = [(name.encode(), value.encode("latin-1")) for name, value in said.items()]
            client = h11.Connection(h11.CLIENT)
            data = client.send(h11.Request(method=method, target=path, headers=sent))
            assert data is not None
            data += client.send(h11.Data(data=body)) or b"" if body else b""
            data += client.send(h11.EndOfMessage()) or b""
            await stream.send_all(data)
            return await read_reply(stream, client)

    async def act(self, name: str, words: object = None, **headers: str) -> Reply:
        """Send a command with its token, unless the headers override that."""
        said = {"Content-Type": "application/json", "X-Distro-Token": self.token} | {
            key.replace("_", "-"): value for key, value in headers.items()
        }
        body = b"" if words is None else json.dumps(words).encode()
        return await self.ask(f"/api/act/{name}", method="POST", headers=said, body=body)


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def read_reply(stream: trio.abc.ReceiveStream, client: h11.Connection) -> Reply:
    status, headers, body = 0, {}, b""
    with trio.fail_after(PATIENCE_SECONDS):
        while True:
            event = client.next_event()
            if event is h11.NEED_DATA:
                client.receive_data(await stream.receive_some(65536))
            elif isinstance(event, h11.Response):
                status = event.status_code
                headers = {name.decode(): value.decode() for name, value in event.headers}
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return Reply(status, headers, body)


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    """Return everything until the other end disconnects, or resets."""
    received = b""
    with trio.fail_after(PATIENCE_SECONDS):
        try:
            while part := await stream.receive_some(65536):
                received += part
        except trio.BrokenResourceError:
            pass
    return received


@asynccontextmanager
async def served(
    open_history: Callable[[], RunHistory | None] = lambda: None,
    *,
    bounds: Bounds | None = None,
    settings: DashboardSettings | None = None,
    invitation: Callable[[], str | None] = lambda: None,
    model: Answer | None = None,
) -> AsyncIterator[Served]:
    address = open_address(settings or DashboardSettings(address=("127.0.0.1", 0)))
    assert address is not None
    port = address.listeners[0].socket.getsockname()[1]
    feed = EventStream(lambda: page.status, open_history)
    page = Served(address, feed, port)

    def note(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
        def handler(words: dict[str, Any]) -> dict[str, Any]:
            page.done.append((name, words))
            return {"error": "no"} if words.get("active") == "wrong" else {"ok": True}

        return handler

    commands = {name: note(name) for name in ("pause", "resume", "leave", "hours", "limits")}
    pages = Routes(address.guard, feed, commands, invitation, model=model)
    server = HttpServer(pages.answer, bounds=bounds, tls=address.tls)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.run)
        await nursery.start(server.run, address.listeners)
        yield page
        nursery.cancel_scope.cancel()
