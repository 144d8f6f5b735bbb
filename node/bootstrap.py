"""A bootstrap peer: it introduces peers to each other, for any swarm, and relays their updates.

It keeps no state that matters; a swarm that has met goes on without it. It runs without torch and
with little memory beside the updates that it relays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from .. import __version__
from ..crypto.identity import Identity
from ..protocol.wire.introductions import Registry
from .network.circuit_relay import CircuitLimits
from .network.discovery.introductions import IntroductionService
from .network.exchange.update_relay import UpdateRelay
from .network.nat.dial_back import DialBack
from .network.network import NetworkSettings, open_network
from .settings import RelayLimits
from .telemetry.bootstrap_metrics import BootstrapMetrics
from .telemetry.metrics import serve_page

# Members stay connected, so this is also how many nodes one bootstrap peer looks after; each costs
# some 200 KB.
MAX_CONNECTIONS = 512
# Of one IP address: a crowd behind it cannot keep all others out.
MAX_CONNECTIONS_PER_ADDRESS = 128
_METRICS_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class BootstrapSettings:
    """Who the bootstrap peer is and where it listens."""

    identity: Identity
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/4001",)
    announce: tuple[str, ...] = ()
    max_connections: int = MAX_CONNECTIONS
    max_upload: float | None = None
    """Bytes a second, all peers together; None: what the line gives."""
    max_download: float | None = None
    metrics_address: tuple[str, int] | None = None
    """Where Prometheus finds its metrics; None: nowhere."""
    relay: RelayLimits | None = field(default_factory=RelayLimits)
    """How much it relays of members' updates; None: nothing."""
    circuits: CircuitLimits = field(default_factory=CircuitLimits)
    """What it carries for peers that cannot be dialled."""


async def run_bootstrap(settings: BootstrapSettings, *, ready: Callable[[list[str]], None]) -> None:
    """Introduce peers, and relay updates, until cancelled; `ready` is told the addresses to pass around.

    Cancelling it closes the connections properly. Raises `PortInUse` and `BadAddress`.
    """
    network_settings = NetworkSettings(
        listen=settings.listen,
        announce=settings.announce,
        max_connections=settings.max_connections,
        max_connections_per_address=MAX_CONNECTIONS_PER_ADDRESS,
        max_upload=settings.max_upload,
        max_download=settings.max_download,
        carry=settings.circuits,
    )
    async with open_network(network_settings, settings.identity) as network:
        if network.carrier is not None:
            network.favours = network.carrier.holds
        registry = Registry()
        IntroductionService(network, registry)
        DialBack(network)
        if settings.relay is not None:
            UpdateRelay(network, settings.relay)
        metrics = BootstrapMetrics(version=__version__)
        page = settings.metrics_address and serve_page(metrics.registry, settings.metrics_address)
        try:
            ready(network.addresses)
            while True:
                metrics.update(network, registry)
                await trio.sleep(_METRICS_SECONDS)
        finally:
            if page:
                page.close()
