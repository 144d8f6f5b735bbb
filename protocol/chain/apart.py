"""Peers on a chain that parts from ours before our last final record: seen, told of, not followed.

Nobody goes back behind what is final, so such a chain leaves nothing to decide. But the node's owner
should hear of it: all friends may be on the other side, of a swarm that was cut in two for longer than
the finality lease or begun twice. A node knows of such a chain only the id that a peer names for one
record, which is the peer's word alone. So it listens only to those that are or were members here, and
tells of each once at most: a chain has another id in each later round, and a liar has any number.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...crypto.identity import PeerId
from ..wire.bounded import Bounded
from ..wire.messages import RecordId

_MOST_PEERS = 1024
_MOST_CHAINS = 1024


class Apart:
    """The peers on such a chain, as far as the latest looks at theirs say."""

    def __init__(self) -> None:
        self._now: Bounded[PeerId, None] = Bounded(_MOST_PEERS)
        self._told: Bounded[PeerId, None] = Bounded(_MOST_PEERS)
        self._chains: Bounded[RecordId, None] = Bounded(_MOST_CHAINS)

    @property
    def peers(self) -> frozenset[PeerId]:
        """The peers that are on one by now."""
        return frozenset(self._now)

    def seen(self, named: Mapping[PeerId, RecordId | None]) -> list[PeerId]:
        """Take in what peers named as their last record before our floor; None: the one that is ours.

        Returns one peer of each chain that is to be told of: neither it nor this record was seen before.
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
