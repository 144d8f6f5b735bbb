"""Serving the dashboard page of a node at an address, with the node's status and files."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol

import trio

from ...crypto.identity import PeerId, peer_text
from ...protocol.wire.errors import ProtocolError
from ...protocol.wire.manifest import Manifest, SwarmId
from ..control.command_socket import Handler
from ..storage.data_dir import SwarmDir
from ..telemetry.status import Status
from .access_control import AccessGuard
from .address import Address
from .event_stream import EventStream
from .http import Answer, Bounds, HttpServer
from .routes import Directory, Routes
from .run_history import RunHistory

_log = logging.getLogger(__name__)

# A conversation is sent whole with each of its questions.
_BOUNDS_WITH_MODEL = Bounds(body_bytes=64 * 1024)


class Node(Protocol):
    """The node that a dashboard page shows; implemented by the supervisor."""

    @property
    def commands(self) -> Mapping[str, Handler]:
        """The commands that its owner may give."""
        ...

    def status(self) -> Status:
        """Return the node's status; must not block."""
        ...


class ModelOfPage(Protocol):
    """A model that the owner can write with on the page."""

    def routes(self, guard: AccessGuard) -> Answer:
        """Return what answers requests below /v1."""
        ...

    async def run(self) -> None:
        """Open the model on request, until cancelled."""
        ...


@contextlib.asynccontextmanager
async def serve_dashboard(
    address: Address | None,
    node: Node,
    files: SwarmDir,
    swarm: SwarmId,
    me: PeerId,
    invite: Callable[[Manifest], str | None],
    *,
    names: Mapping[PeerId, str],
    model: ModelOfPage | None = None,
    directory: Directory | None = None,
) -> AsyncIterator[None]:
    """Serve the dashboard page of a node inside the context, if it has an address.

    `invite` makes the invite link that is shown to all viewers, or None; `model` is what the owner
    writes with, `names` are members' names for themselves, and `directory` returns the public swarms to
    show.
    """
    if address is None:
        yield
        return

    @functools.cache
    def read_manifest() -> Manifest:
        return files.read_manifest(swarm)

    # Without the manifest on the disk there is no history to show.
    def open_history() -> RunHistory | None:
        with contextlib.suppress(OSError, ProtocolError):
            founder = read_manifest().founder
            return RunHistory(founder, peer_text(me), files.ledger, files.history)
        return None

    def invitation() -> str | None:
        with contextlib.suppress(OSError, ProtocolError):
            return invite(read_manifest())
        return None

    events = EventStream(node.status, open_history)
    answer_model = None if model is None else model.routes(address.guard)
    routes = Routes(
        address.guard,
        events,
        node.commands,
        invitation,
        model=answer_model,
        directory=directory,
        names=lambda: {peer_text(peer): name for peer, name in names.items()},
    )
    bounds = Bounds() if model is None else _BOUNDS_WITH_MODEL
    async with trio.open_nursery() as nursery:
        nursery.start_soon(events.run)
        if model is not None:
            nursery.start_soon(model.run)
        server = HttpServer(routes.answer, bounds=bounds, tls=address.tls)
        await nursery.start(server.run, address.listeners)
        _log.info("the page of this node is at %s", address.url)
        yield
        nursery.cancel_scope.cancel()
