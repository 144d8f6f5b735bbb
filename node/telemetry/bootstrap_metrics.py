"""Prometheus metrics of a bootstrap peer: its load, and the requests that it refused.

As in `metrics.py`, label values come from fixed sets: no swarm and no peer has a series of its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from .families import MetricLabel, MetricRow, values_of
from .status import BootstrapStatus

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
"""Why the circuit relay refused a request. `reservations`, `circuits`: it has too many of them;
`no_reservation`: the peer to call has none; `unwilling`: the relay grants no reservations at present;
`unreachable`: the peer to call does not answer; `refused_peer`: the sender has misbehaved, or is itself
reached through a relay; `stranger`: the sender is in no known swarm and was introduced to none."""


@dataclass(frozen=True, kw_only=True)
class BootstrapReading:
    """Everything that a scrape of a bootstrap peer renders, at one time."""

    status: BootstrapStatus
    relayed_bytes: int = 0
    """Bytes of all circuits since the start."""
    refused: Counter[str] = field(default_factory=Counter)
    """Requests to the circuit relay that were refused, by reason."""


BOOTSTRAP_METRICS: tuple[MetricRow[BootstrapReading], ...] = (
    MetricRow(
        "info",
        "build",
        "The version of distro-node.",
        lambda at: {"version": at.status.version},
        MetricLabel(name="version"),
    ),
    MetricRow(
        "gauge",
        "bootstrap_peers_connected",
        "Peers with an open connection.",
        lambda at: at.status.line.peers,
    ),
    MetricRow(
        "gauge",
        "bootstrap_swarms",
        "Swarms of which peers have registered here.",
        lambda at: at.status.swarms,
    ),
    MetricRow(
        "gauge",
        "bootstrap_reservations",
        "Peers with a reservation, which others can dial through this relay.",
        lambda at: at.status.reservations,
    ),
    MetricRow(
        "gauge",
        "bootstrap_circuits",
        "Circuits: open connections between peers through this relay.",
        lambda at: at.status.circuits,
    ),
    MetricRow(
        "counter",
        "bootstrap_relayed_bytes_total",
        "Bytes relayed between peers that cannot reach each other.",
        lambda at: at.relayed_bytes,
    ),
    MetricRow(
        "counter",
        "bootstrap_refused_total",
        "Requests to the circuit relay that were refused.",
        lambda at: at.refused,
        values_of("reason", Refusal),
    ),
)
