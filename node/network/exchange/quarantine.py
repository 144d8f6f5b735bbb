"""Whom to leave alone for a while: peers that took what was asked of them and brought nothing.

Twice as long each time it happens again, and never for good; whoever brings something is forgiven.
"""

from __future__ import annotations

import trio

from ....crypto.identity import PeerId

# Of waiting in vain, several times taken together. A connection that has died for all is noticed sooner
# (`liveness`); a busy line may keep somebody waiting for seconds, but not again and again.
_PATIENCE_SECONDS = 10.0
_FIRST_SECONDS = 30.0
_LONGEST_SECONDS = 600.0
_MAX_PEERS = 1024


class Quarantine:
    """The peers that are left alone at present, by trio's clock."""

    def __init__(self) -> None:
        # By peer: until when, and for how long the next time.
        self._quarantine: dict[PeerId, tuple[float, float]] = {}
        self._waited: dict[PeerId, float] = {}

    def __contains__(self, peer: PeerId) -> bool:
        return self._quarantine.get(peer, (0.0, 0.0))[0] > trio.current_time()

    def add(self, peer: PeerId) -> None:
        """Leave a peer alone from now on."""
        _, pause = self._quarantine.pop(peer, (0.0, _FIRST_SECONDS))
        self._quarantine[peer] = (trio.current_time() + pause, min(2 * pause, _LONGEST_SECONDS))
        if len(self._quarantine) > _MAX_PEERS:
            del self._quarantine[next(iter(self._quarantine))]

    def waited(self, peer: PeerId, seconds: float) -> bool:
        """A peer was waited for in vain; whether it has been for so long that it is left alone now."""
        total = self._waited.pop(peer, 0.0) + seconds
        if total >= _PATIENCE_SECONDS:
            self.add(peer)
            return True
        self._waited[peer] = total
        if len(self._waited) > _MAX_PEERS:
            del self._waited[next(iter(self._waited))]
        return False

    def forgive(self, peer: PeerId) -> None:
        """Forget all about a peer."""
        self._quarantine.pop(peer, None)
        self._waited.pop(peer, None)
