"""Bandwidth limits of the node, as its owner set them last, at the node's start or later."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class BandwidthLimits:
    """Bytes per second; None for no limit. The limits outlive the sessions in the swarm."""

    upload: float | None = None
    download: float | None = None
