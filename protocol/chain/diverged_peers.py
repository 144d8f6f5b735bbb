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
        self._diverged: BoundedTable[PeerId, None] = BoundedTable(_MOST_PEERS)
        self._ever_diverged: BoundedTable[PeerId, None] = BoundedTable(_MOST_PEERS)
        self._chains: BoundedTable[RecordId, None] = BoundedTable(_MOST_CHAINS)

    @property
    def peers(self) -> frozenset[PeerId]:
        """Peers that are on a diverged chain now."""
        return frozenset(self._diverged)

    def take_reports(self, reported: Mapping[PeerId, RecordId | None]) -> list[PeerId]:
        """Process the ids that peers reported for the record before our floor; None: the same id as
        ours.

        Returns the peers of which the owner should learn, one for each id: those that were never on a
        diverged chain before and whose record id was not seen before.
        """
        new_peers = []
        for peer, record in reported.items():
            if record is None:
                self._diverged.pop(peer, None)
                continue
            if peer not in self._ever_diverged and record not in self._chains:
                new_peers.append(peer)
            self._diverged[peer] = self._ever_diverged[peer] = self._chains[record] = None
        return new_peers
