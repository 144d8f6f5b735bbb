"""The network connection in the status."""

from __future__ import annotations

from ..network.network import Network
from .status import LineStatus


def line_status(network: Network, *, relayed: int, bootstrap: bool) -> LineStatus:
    """Return the status of the network connection. `relayed`: bytes relayed between others; `bootstrap`:
    whether a bootstrap peer is connected."""
    sent, received = network.wire_bytes()
    traffic = network.traffic
    return LineStatus(
        sent_bytes=sent,
        received_bytes=received,
        relayed_bytes=relayed,
        peers=len(network.connected()),
        peers_relayed=len(network.relayed()),
        bootstrap=bootstrap,
        addresses=tuple(network.addresses),
        max_upload=traffic.upload.limit,
        max_download=traffic.download.limit,
    )
