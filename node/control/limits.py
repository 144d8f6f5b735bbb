"""How much of the line the node may take, as its owner has said last: at its start, or since."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Limits:
    """Bytes a second; None: what the line gives. They outlive the stays in the swarm."""

    upload: float | None = None
    download: float | None = None
