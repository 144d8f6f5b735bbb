"""A member's local policy: which data it trains on, with what noise, and what state it keeps.

An update has the same format whatever the policy, so other members cannot read the policy from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...protocol.wire.manifest import ShardSpec


@dataclass(frozen=True, kw_only=True)
class Clipping:
    """DP-SGD (Abadi et al., arXiv 1607.00133) with a sequence as the example."""

    norm: float
    """The greatest norm of a sequence's gradient; longer ones are scaled down to it."""
    noise: float
    """The standard deviation of the Gaussian noise added to the sum of gradients, divided by `norm`."""
    sequences: int
    """The expected number of sequences in a sum, by which it is divided: never the actual number."""


@dataclass(frozen=True, kw_only=True)
class LocalPolicy:
    """A member's own choices."""

    blobs: str | None = None
    """The folder of the store with its own data; None: it trains on its assignment."""
    shards: tuple[ShardSpec, ...] = ()
    """The shards in that store."""
    clipping: Clipping | None = None
    """Bound and noise for gradients; None: gradients are used unchanged."""
    stateless: bool = False
    """Whether momentum and second moment are reset after each update, which drops what was not sent."""


DEFAULT_POLICY = LocalPolicy()
