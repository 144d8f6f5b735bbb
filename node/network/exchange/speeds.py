"""How fast each provider has been, so that the fast ones are asked first.

An estimate from the bytes of every transfer and its time, including those that were given up: a peer
that freezes in the middle is the slowest of all. Nobody is struck off; a peer that became fast again
shows it when the others are busy.
"""

from __future__ import annotations

from ....crypto.identity import PeerId
from ....protocol.wire.bounded import Bounded

# The weight of the newest measurement.
_NEWEST = 0.3
# Not zero, since it is divided by.
_SLOWEST_BYTES_PER_SECOND = 1.0
# Smaller transfers tell about the distance, not about the line.
_LEAST_SECONDS = 0.05
MAX_PEERS = 1024


class Speeds:
    """Bytes a second, by provider."""

    def __init__(self) -> None:
        self._rates: Bounded[PeerId, float] = Bounded(MAX_PEERS)

    def note(self, peer: PeerId, size: int, seconds: float, busy: int) -> None:
        """`peer` gave `size` bytes in so many seconds, `busy` transfers of ours sharing its line."""
        if seconds < _LEAST_SECONDS:
            return
        rate = max(_SLOWEST_BYTES_PER_SECOND, busy * size / seconds)
        known = self._rates.get(peer, rate)
        self._rates[peer] = known + _NEWEST * (rate - known)

    def cost(self, peer: PeerId, busy: int) -> float:
        """How long one more transfer from `peer` takes beside the `busy` ones, for comparison.

        A peer that we know nothing of counts as fast as the fastest: else it would never be tried.
        """
        best = max(self._rates.values(), default=_SLOWEST_BYTES_PER_SECOND)
        return (busy + 1) / self._rates.get(peer, best)
