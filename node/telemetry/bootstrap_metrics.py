"""Prometheus metrics of a bootstrap peer: its load, and the requests that it refused.

As in `metrics`, label values come from fixed sets: no swarm and no peer has a series of its own.
"""

from __future__ import annotations

from typing import Literal, get_args

from prometheus_client import Counter, Gauge

from ...protocol.wire.introductions import Registry
from ..network.network import Network
from .families import Family, Follower
from .metrics import new_registry

Refusal = Literal[
    "reservations",
    "circuits",
    "no_reservation",
    "unwilling",
    "unreachable",
    "refused_peer",
    "stranger",
    "malformed",
    "other",
]


class BootstrapMetrics:
    """The metrics of one bootstrap peer, in a registry of their own."""

    def __init__(self, *, version: str) -> None:
        self.registry = new_registry(version)
        self._peers = self._gauge("peers_connected", "Peers with an open connection.")
        self._swarms = self._gauge("swarms", "Swarms of which peers have registered here.")
        self._reservations = self._gauge(
            "reservations", "Peers with a reservation, which others can dial through this relay."
        )
        self._circuits = self._gauge(
            "circuits", "Circuits: open connections between peers through this relay."
        )
        self._relayed = Counter(
            "distro_bootstrap_relayed_bytes_total",
            "Bytes relayed between peers that cannot reach each other.",
            registry=self.registry,
        )
        refused = Counter(
            "distro_bootstrap_refused_total",
            "Requests to the circuit relay that were refused.",
            ["reason"],
            registry=self.registry,
        )
        self._refused = Follower(Family(refused, get_args(Refusal)))
        self._relayed_so_far = 0

    def update(self, network: Network, introduced: Registry) -> None:
        """Bring all metrics up to date."""
        self._peers.set(len(network.connected()))
        self._swarms.set(introduced.swarms())
        carrier = network.carrier
        if carrier is not None:
            self._reservations.set(carrier.reservations())
            self._circuits.set(carrier.circuits)
            self._relayed.inc(carrier.relayed_bytes - self._relayed_so_far)
            self._relayed_so_far = carrier.relayed_bytes
            self._refused.update(carrier.refused)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"distro_bootstrap_{name}", text, registry=self.registry)
