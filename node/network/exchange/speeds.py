"""The measured speed of each provider, so that fast ones are asked first.

The estimate uses the bytes and the time of every transfer, including those given up, so a peer that
freezes halfway counts as slowest. No peer is excluded: one that became fast again is measured anew when
the others are busy.
"""

from __future__ import annotations

from ....crypto.identity import PeerId
from ....protocol.util.bounded_dict import BoundedTable

# The weight of the newest measurement.
_NEWEST = 0.3
# Not zero, because it is a divisor.
_SLOWEST_BYTES_PER_SECOND = 1.0
# Shorter transfers measure the latency, not the rate.
_LEAST_SECONDS = 0.05
MAX_PEERS = 1024


class ProviderSpeeds:
    """Bytes per second by provider."""

    def __init__(self) -> None:
        self._rates: BoundedTable[PeerId, float] = BoundedTable(MAX_PEERS)

    def note(self, peer: PeerId, size: int, seconds: float, busy: int) -> None:
        """Note that `peer` sent `size` bytes in `seconds`, while `busy` transfers of ours shared its
        line."""
        if seconds < _LEAST_SECONDS:
            return
        rate = max(_SLOWEST_BYTES_PER_SECOND, busy * size / seconds)
        known = self._rates.get(peer, rate)
        self._rates[peer] = known + _NEWEST * (rate - known)

    def cost(self, peer: PeerId, busy: int) -> float:
        """Return the relative time that one more transfer from `peer` takes while `busy` others are
        under way.

        A peer without measurements counts as fast as the fastest; otherwise it would never be tried.
        """
        best = max(self._rates.values(), default=_SLOWEST_BYTES_PER_SECOND)
        return (busy + 1) / self._rates.get(peer, best)
