"""Peers on a chain that diverges before our last final record: reported to the owner, not followed.

No node reverts a final record, so such a chain leaves nothing to decide. But the node's owner should
learn of it: the members that the owner knows may all be on the other side, of a swarm that was
partitioned for longer than the finality lease or created twice. All that a node has of such a chain is
the id that a peer reports for one record, without proof. So it counts only reports of present and
former members, and reports each chain and each peer at most once: a chain has another id in each later
round, and a byzantine peer can make any number of chains.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...crypto.identity import PeerId
from ..util.bounded_dict import BoundedTable
from ..wire.messages import RecordId

_MOST_PEERS = 1024
_MOST_CHAINS = 1024


class DivergedPeers:
    """Peers on a diverged chain, by their latest reports."""

    def __init__(self) -> None:
        self._now: BoundedTable[PeerId, None] = BoundedTable(_MOST_PEERS)
        self._told: BoundedTable[PeerId, None] = BoundedTable(_MOST_PEERS)
        self._chains: BoundedTable[RecordId, None] = BoundedTable(_MOST_CHAINS)

    @property
    def peers(self) -> frozenset[PeerId]:
        """Peers that are on a diverged chain now."""
        return frozenset(self._now)

    def seen(self, named: Mapping[PeerId, RecordId | None]) -> list[PeerId]:
        """Process what peers reported as their last record before our floor; None: the same record as
        ours.

        Returns one peer of each chain that the owner should learn of: neither the peer nor this record
        was seen before.
        """
        news = []
        for peer, record in named.items():
            if record is None:
                self._now.pop(peer, None)
                continue
            if peer not in self._told and record not in self._chains:
                news.append(peer)
            self._now[peer] = self._told[peer] = self._chains[record] = None
        return news
