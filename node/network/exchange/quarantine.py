"""Quarantine of peers that accept requests and deliver nothing.

The time in quarantine doubles with each repetition and is never permanent; a peer that delivers
something is released.
"""

from __future__ import annotations

import trio

from ....crypto.identity import PeerId
from ....protocol.util.backoff import Backoff
from ....protocol.util.bounded_dict import BoundedTable

# After this many seconds of waiting without an answer, over several requests, a peer is quarantined. A
# connection that is dead altogether is noticed sooner (`liveness`); a busy line may delay an answer for
# seconds, but not repeatedly.
_PATIENCE_SECONDS = 10.0
_FIRST_SECONDS = 30.0
_LONGEST_SECONDS = 600.0
MAX_PEERS = 1024


class Quarantine:
    """The peers in quarantine at present, by trio's clock."""

    def __init__(self) -> None:
        self._quarantine: Backoff[PeerId] = Backoff(_FIRST_SECONDS, _LONGEST_SECONDS, MAX_PEERS)
        self._waited: BoundedTable[PeerId, float] = BoundedTable(MAX_PEERS)

    def __contains__(self, peer: PeerId) -> bool:
        return self._quarantine.rests(peer, trio.current_time())

    def add(self, peer: PeerId) -> None:
        """Put a peer in quarantine."""
        self._quarantine.failed(peer, trio.current_time())

    def note_wait(self, peer: PeerId, seconds: float) -> bool:
        """Note a wait of `seconds` without an answer; return whether the peer has been quarantined for
        it."""
        total = self._waited.pop(peer, 0.0) + seconds
        if total >= _PATIENCE_SECONDS:
            self.add(peer)
            return True
        self._waited[peer] = total
        return False

    def release(self, peer: PeerId) -> None:
        """Remove a peer's record."""
        self._quarantine.pop(peer, None)
        self._waited.pop(peer, None)
