"""How a member trains where that is its own affair: on which data, with what noise, and what it keeps.

Nothing of it changes an update's form, and nobody can tell it from one.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...protocol.wire.manifest import ShardSpec


@dataclass(frozen=True, kw_only=True)
class Clipping:
    """DP-SGD (Abadi et al., arXiv 1607.00133) with a sequence as the example."""

    norm: float
    """The longest that a sequence's gradient may be; longer ones are shortened to it."""
    noise: float
    """The standard deviation of the Gaussian noise that is added to their sum, over `norm`."""
    sequences: int
    """How many are expected in a sum, by which it is divided: never how many there were."""


@dataclass(frozen=True, kw_only=True)
class OwnWays:
    """What a member has chosen for itself."""

    blobs: str | None = None
    """The folder of the store with its own data; None: it trains on what it is dealt."""
    shards: tuple[ShardSpec, ...] = ()
    """What lies there."""
    clipping: Clipping | None = None
    """None: gradients are used as they are."""
    stateless: bool = False
    """After each update momentum and second moment begin anew, and what was not sent is dropped."""


USUAL_WAYS = OwnWays()
