"""The process of `distro-node serve`: address, model and routes together."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from ..dashboard.address import Address, Encryption, open_model_address
from ..dashboard.http import Bounds, HttpServer
from ..util.operating_system import ENDING_SIGNALS
from .completion_request import MAX_BODY_BYTES
from .model_source import ModelName, ModelSource
from .routes import CompletionRoutes, refusal
from .text_service import ServiceLimits, TextService

_log = logging.getLogger(__name__)

# Requests wait in the service's queue (`ServiceLimits.queue`) with their connections open. The limit of
# connections is far above the length of that queue, so that a client is refused with a proper answer.
_BOUNDS = Bounds(body_bytes=MAX_BODY_BYTES, connections=96)


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """Which model is served, where, and to whom."""

    source: ModelSource
    address: tuple[str, int]
    encryption: Encryption = field(default_factory=Encryption)
    token: str | None = None
    """The key that clients have to send; None: none at a loopback address, elsewhere a drawn one."""
    most_tokens: int = 512
    """Maximum length of a text in tokens, whatever a client requests."""
    limits: ServiceLimits = field(default_factory=ServiceLimits)


async def run_server(
    settings: ServeSettings, announce: Callable[[Address, ModelName], None]
) -> None:
    """Serve until a signal ends it; `announce` is called once the model is ready. Raises `UserError`."""
    # The address comes first, so that one that cannot be used is reported before the model is loaded,
    # which takes a while.
    address = open_model_address(settings.address, settings.encryption, settings.token)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_on_signal, nursery.cancel_scope)
            service = TextService(settings.limits)
            await nursery.start(service.run, settings.source)
            routes = CompletionRoutes(address.guard, service, settings.most_tokens)
            # `abandons`: a text is given up if its client disconnects.
            server = HttpServer(
                routes.answer, bounds=_BOUNDS, tls=address.tls, refusal=refusal, abandons=True
            )
            await nursery.start(server.run, address.listeners)
            # There is no name if the model's process has died since.
            name = service.name
            if name is not None:
                announce(address, name)
    finally:
        address.close()


async def _end_on_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(*ENDING_SIGNALS) as signals:
        async for _ in signals:
            _log.info("told to end")
            scope.cancel()
            return
