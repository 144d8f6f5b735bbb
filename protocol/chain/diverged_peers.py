"""Peers on a chain that diverges before our last final record: reported to the owner, not followed.

No node reverts a final record, so it never follows such a chain. But the node's owner should learn of
it: if the swarm was partitioned for longer than the finality lease, or created twice, the members that
the owner knows may all be on the other chain. All that a node has of such a chain is the id that a peer
reports for one record, without proof. So it counts only the reports of present and former members. It
tells the owner at most once of each record id and of each peer, because a chain has another id in each
later round, and a byzantine peer can make any number of chains.
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
        """Process the ids that peers reported for the record before our floor; None: the same id as
        ours.

        Returns the peers of which the owner should learn, one for each id: those that were never on a
        diverged chain before and whose record id was not seen before.
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
