"""Replication: finds chunks with too few copies, so that no peer that leaves takes the last one along.

Members fetch the training data that they need, and none is required to have it complete. If there is no
other source, each keeps some chunks beyond its own, those with the fewest copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from ...crypto.hashing import ContentId, content_id
from ...crypto.identity import PeerId
from ...protocol.wire.blobs import BlobList
from ..network.exchange.chunks import ask_holdings
from ..network.network import Network

WANTED_COPIES = 3
"""Number of peers that should have each chunk: two may leave at once."""

_MAX_PARALLEL_REQUESTS = 8


class Replication:
    """Copies of chunks among the connected peers."""

    def __init__(self, network: Network, peers: Callable[[], Sequence[PeerId]]) -> None:
        self._network = network
        self._peers = peers

    async def scarce(self, blob: ContentId, blob_list: BlobList) -> list[ContentId]:
        """Return the chunks of the list `blob` that fewer than `WANTED_COPIES` peers have, the scarcest
        first.

        Chunks with equally many copies are in an order of this node's own, so that members that look at
        the same time keep different ones.
        """
        copies = [0] * len(blob_list.chunks)
        limit = trio.CapacityLimiter(_MAX_PARALLEL_REQUESTS)

        async def ask(peer: PeerId) -> None:
            async with limit:
                holdings = await ask_holdings(self._network, peer, blob, len(copies))
            for number, has in enumerate(holdings or ()):
                copies[number] += has

        async with trio.open_nursery() as nursery:
            for peer in self._peers():
                nursery.start_soon(ask, peer)
        own = self._network.peer
        scarce_counts = {
            c: n for c, n in zip(blob_list.chunks, copies, strict=True) if n < WANTED_COPIES
        }
        return sorted(
            scarce_counts, key=lambda chunk: (scarce_counts[chunk], content_id(own + chunk))
        )
