"""Peers to leave alone for a while: those that took a request and brought nothing.

Twice as long each time it happens again, and never for good; a peer that brings something is forgiven.
"""

from __future__ import annotations

import trio

from ....crypto.identity import PeerId
from ....protocol.wire.backoff import Backoff
from ....protocol.wire.bounded import Bounded

# Seconds waited in vain, several times taken together. A connection that has died for all is noticed
# sooner (`liveness`); a busy line may keep somebody waiting for seconds, but not again and again.
_PATIENCE_SECONDS = 10.0
_FIRST_SECONDS = 30.0
_LONGEST_SECONDS = 600.0
MAX_PEERS = 1024


class Quarantine:
    """The peers that are left alone at present, by trio's clock."""

    def __init__(self) -> None:
        self._quarantine: Backoff[PeerId] = Backoff(_FIRST_SECONDS, _LONGEST_SECONDS, MAX_PEERS)
        self._waited: Bounded[PeerId, float] = Bounded(MAX_PEERS)

    def __contains__(self, peer: PeerId) -> bool:
        return self._quarantine.rests(peer, trio.current_time())

    def add(self, peer: PeerId) -> None:
        """Leave a peer alone from now on."""
        self._quarantine.failed(peer, trio.current_time())

    def waited(self, peer: PeerId, seconds: float) -> bool:
        """A peer was waited for in vain; whether it has been for so long that it is left alone now."""
        total = self._waited.pop(peer, 0.0) + seconds
        if total >= _PATIENCE_SECONDS:
            self.add(peer)
            return True
        self._waited[peer] = total
        return False

    def forgive(self, peer: PeerId) -> None:
        """Forget all about a peer."""
        self._quarantine.pop(peer, None)
        self._waited.pop(peer, None)
