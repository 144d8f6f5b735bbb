"""The page of metrics for Prometheus, with the same HTTP server and access control as the dashboard
page.

A scrape is rendered in a thread, since it looks at the disk; the reading is taken on the event loop,
because the loop's tasks change everything that it reads. Reading needs no token: Prometheus has none.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

import trio
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from ..telemetry.families import MetricRow, registry_of
from .access_control import answer_guarded
from .address import Address
from .http import Bounds, HttpServer, Request, Response, text_response

T = TypeVar("T")

# Enough for a collector or two and a person. A further connection replaces an idle one.
_BOUNDS = Bounds(connections=8)


def metrics_url(address: Address) -> str:
    """Return the URL of the metrics at this address."""
    return f"{address.url}metrics"


@contextlib.asynccontextmanager
async def serve_metrics(
    address: Address | None, rows: Sequence[MetricRow[T]], read: Callable[[], T]
) -> AsyncIterator[None]:
    """Serve these metrics inside the context, if they have an address. `read` is called on the event
    loop for every scrape; it must not block."""
    if address is None:
        yield
        return
    registry = registry_of(rows, lambda: trio.from_thread.run_sync(read))
    server = HttpServer(_MetricsRoutes(address, registry).answer, bounds=_BOUNDS)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run, address.listeners)
        yield
        nursery.cancel_scope.cancel()


class _MetricsRoutes:
    """Answers the requests of collectors."""

    def __init__(self, address: Address, registry: CollectorRegistry) -> None:
        self._guard = address.guard
        self._registry = registry

    async def answer(self, request: Request) -> Response:
        """Return the response to a request, with the security headers."""
        return await answer_guarded(self._guard, request, self._answer)

    async def _answer(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return text_response(405, "this can only be read")
        if request.path not in ("/", "/metrics"):
            return text_response(404, "there is no such page; the metrics are at /metrics")
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        body = await trio.to_thread.run_sync(encode, self._registry)
        return Response(headers={"Content-Type": kind}, body=body)
