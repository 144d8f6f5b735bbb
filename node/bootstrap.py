"""A bootstrap peer: introduces peers of any swarm to each other, and relays their updates.

It keeps no essential state: a swarm whose members have met goes on without it. It runs without torch,
and needs little memory apart from the updates that it relays. It may observe one of its swarms and
serve that swarm's page (`hosted_observer`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import trio

from .. import __version__
from ..crypto.identity import Identity, peer_text
from ..protocol.wire.introductions import Registry
from .control.command_socket import serve_control
from .dashboard.address import open_metrics_address
from .dashboard.metrics_page import serve_metrics
from .hosted_observer import HostedObserver, open_hosted_observer
from .listing.listing_service import ListingService
from .listing.swarm_list import SwarmList
from .network.circuit_relay import CircuitLimits
from .network.discovery.introductions import IntroductionService
from .network.exchange.update_relay import UpdateRelay
from .network.nat.dial_back import DialBack
from .network.network import Network, NetworkSettings, open_network
from .session.relay_counter import store_relayed_count, update_relayed_count
from .settings.components import LineSettings, RelayLimits
from .settings.tree import DaemonSettings
from .storage.relayed_bytes import RelayedBytes
from .telemetry.bootstrap_metrics import BOOTSTRAP_METRICS, BootstrapReading
from .telemetry.line_status import line_status
from .telemetry.status import BootstrapStatus, encode_status
from .util.background import keep_running

# Fixed ports, so that a link stays valid after a restart; 4001 is libp2p's usual one.
_DEFAULT_LISTEN = ("/ip4/0.0.0.0/tcp/4001", "/ip6/::/tcp/4001")
# Members stay connected, so this also limits how many nodes one bootstrap peer serves; each costs some
# 200 KB.
MAX_CONNECTIONS = 512
# Per IP address, so that many peers at one address cannot lock out all others.
MAX_CONNECTIONS_PER_ADDRESS = 128
_REPLY_TIMEOUT_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class BootstrapSettings:
    """Identity, addresses and limits of a bootstrap peer."""

    identity: Identity
    line: LineSettings = field(default_factory=LineSettings)
    """Its addresses, and the limits on what it sends and receives for all peers together."""
    max_connections: int = MAX_CONNECTIONS
    metrics_address: tuple[str, int] | None = None
    """Host and port at which Prometheus metrics are served; None: not served."""
    relay: RelayLimits | None = field(default_factory=RelayLimits)
    """Limits for relaying members' updates; None: none are relayed."""
    circuits: CircuitLimits = field(default_factory=CircuitLimits)
    """Limits for the circuits that it relays for peers that cannot be dialled."""
    relayed: Path | None = None
    """File with the count of relayed bytes; None: not stored."""
    socket: Path | None = None
    """Control socket for its owner's `distro-node status` and `leave`; None: none."""
    observe: DaemonSettings | None = None
    """The swarm to observe, and where to serve its page; None: no swarm. The identity and the network
    are the bootstrap peer's own."""
    list_swarms: bool = False
    """Whether to keep a list of public swarms."""


async def run_bootstrap(settings: BootstrapSettings, *, ready: Callable[[list[str]], None]) -> None:
    """Introduce peers and relay updates until told to leave; call `ready` with the addresses when it
    serves.

    Cancelling it also closes the connections properly. Raises `PortInUse` and `BadAddress`, and
    `UserError` for an address at which no page can be served.
    """
    with contextlib.ExitStack() as stack:
        observer = None
        if settings.observe is not None:
            observer = stack.enter_context(
                open_hosted_observer(settings.observe, settings.identity)
            )
        await _serve(settings, observer, ready)


async def _serve(
    settings: BootstrapSettings, observer: HostedObserver | None, ready: Callable[[list[str]], None]
) -> None:
    network_settings = NetworkSettings(
        listen=settings.line.listen or _DEFAULT_LISTEN,
        announce=settings.line.announce,
        max_connections=settings.max_connections,
        max_connections_per_address=MAX_CONNECTIONS_PER_ADDRESS,
        max_upload=settings.line.max_upload,
        max_download=settings.line.max_download,
        circuit_limits=settings.circuits,
    )
    async with open_network(network_settings, settings.identity) as network:
        if network.circuit_relay is not None:
            network.is_exempt = network.circuit_relay.has_reservation
        registry = Registry()
        IntroductionService(network, registry)
        DialBack(network)
        listed = SwarmList() if settings.list_swarms else None
        if listed is not None:
            ListingService(network, listed)
        if settings.relay is not None:
            UpdateRelay(network, settings.relay)
        leaving, relayed = trio.Event(), RelayedBytes(settings.relayed)
        status = partial(bootstrap_status, network, relayed, registry, observer, time.time())
        metrics = settings.metrics_address and open_metrics_address(settings.metrics_address)
        reading = partial(read_bootstrap, network, status)
        async with (
            serve_metrics(metrics, BOOTSTRAP_METRICS, reading),
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(keep_running, partial(store_relayed_count, network, relayed))
            if settings.socket is not None:
                handlers = {
                    "status": lambda _: encode_status(status()),
                    "leave": lambda _: _leave(leaving),
                    # The page is read-only: nothing can be done through it.
                    "dashboard": lambda _: {"url": observer and observer.url, "link": None},
                }
                await nursery.start(serve_control, settings.socket, handlers)
            if observer is not None:
                nursery.start_soon(observer.run, network, registry, listed)
            ready(network.addresses)
            await leaving.wait()
            # Leaves time to answer the `leave` command first.
            await trio.sleep(_REPLY_TIMEOUT_SECONDS)
            nursery.cancel_scope.cancel()


def _leave(leaving: trio.Event) -> dict[str, Any]:
    leaving.set()
    return {"ok": True}


def read_bootstrap(network: Network, status: Callable[[], BootstrapStatus]) -> BootstrapReading:
    """Return the values from which a bootstrap peer's metrics are written."""
    relay = network.circuit_relay
    if relay is None:
        return BootstrapReading(status=status())
    return BootstrapReading(
        status=status(), relayed_bytes=relay.relayed_bytes, refused=relay.refused.copy()
    )


def bootstrap_status(
    network: Network,
    relayed: RelayedBytes,
    registry: Registry,
    observer: HostedObserver | None,
    started: float,
) -> BootstrapStatus:
    """Return the status of a bootstrap peer that `started` at this time, in seconds since 1970."""
    relay = network.circuit_relay
    return BootstrapStatus(
        version=__version__,
        peer=peer_text(network.peer),
        started=started,
        swarms=registry.swarms(),
        reservations=0 if relay is None else relay.reservations(),
        circuits=0 if relay is None else relay.circuits,
        observes=None if observer is None else observer.swarm,
        dashboard=None if observer is None else observer.url,
        line=line_status(network, relayed=update_relayed_count(network, relayed), bootstrap=False),
    )
