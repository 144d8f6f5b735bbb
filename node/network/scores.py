"""Misbehaviour scores of peers.

Offences add up and decay with time, and beyond a limit the peer is refused for a while. The caller
passes the time. The table is bounded, so that throw-away identities cannot fill the memory.
"""

from __future__ import annotations

from ...crypto.identity import PeerId
from ...protocol.util.bounded_dict import BoundedTable

# Four ordinary offences within some minutes, or two blobs with wrong content.
LIMIT = 80.0
WEIGHTS = {"bad_hash": 50.0, "impersonation": 100.0}
DEFAULT_WEIGHT = 25.0
# An honest peer with a temporary fault is forgiven within an hour; a flood accumulates faster than this.
HALF_LIFE_SECONDS = 600.0
REFUSAL_SECONDS = 600.0
MAX_PEERS = 4096


class OffenceScores:
    """The offences of peers."""

    def __init__(self) -> None:
        self._scores: BoundedTable[PeerId, tuple[float, float]] = BoundedTable(MAX_PEERS)
        self._refused_until: BoundedTable[PeerId, float] = BoundedTable(MAX_PEERS)

    def penalise(self, peer: PeerId, reason: str, now: float) -> bool:
        """Add an offence; return whether the peer is refused from now on."""
        score = self.score(peer, now) + WEIGHTS.get(reason, DEFAULT_WEIGHT)
        self._scores[peer] = (score, now)
        if score < LIMIT:
            return False
        self._refused_until[peer] = now + REFUSAL_SECONDS
        del self._scores[peer]
        return True

    def score(self, peer: PeerId, now: float) -> float:
        """Return a peer's decayed score; 0 means no offences."""
        score, scored_at = self._scores.get(peer, (0.0, now))
        return score * 0.5 ** ((now - scored_at) / HALF_LIFE_SECONDS)

    def refused(self, peer: PeerId, now: float) -> bool:
        """Whether this peer is refused at present."""
        return now < self._refused_until.get(peer, float("-inf"))
