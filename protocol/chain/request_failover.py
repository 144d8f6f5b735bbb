"""One sync request with failover: peers are asked one after another, the next as soon as one is slow.

A peer that answers slowly may be far away, or may be byzantine and delay the node for as long as it can:
a node that is behind can be made to accept what no other node would. So the request waits for no single
peer, and the first answer counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...crypto.identity import PeerId
from .sync import SyncAnswer, SyncQuery

DAWDLE_SECONDS = 3.0
"""Time after which a peer counts as slow, and the next one is asked as well."""

AT_ONCE = 3
"""Most peers asked at the same time. There are few, because an answer can be long and the connection
slow."""

PATIENCE_SECONDS = 60.0
"""Time after which the node gives up on a peer's answer."""


class PeerFailover:
    """One request, sent to several peers until one answers. Times are in seconds of any steady clock."""

    def __init__(self, peers: Sequence[PeerId], members: set[PeerId], round: int) -> None:
        """Request everything from `round` on. `peers` are in random order; the `members` among them are
        asked first, as they know more."""
        self.found: tuple[PeerId, SyncAnswer] | None = None
        """The first answer and its sender."""
        self._round = round
        self._waiting = sorted(peers, key=lambda peer: peer not in members)
        self._asked: dict[PeerId, float] = {}

    @property
    def done(self) -> bool:
        """Whether no further request is needed or possible."""
        return self.found is not None or not (self._waiting or self._asked)

    def deadline(self, now: float) -> float:
        """Return the latest time for the next call of `requests`."""
        asked = self._asked.values() or [now]
        until = min(asked) + PATIENCE_SECONDS
        if self._waiting and len(self._asked) < AT_ONCE:
            until = min(until, max(asked) + DAWDLE_SECONDS)
        return max(now, until)

    def requests(self, now: float) -> list[SyncQuery]:
        """Return the requests to send now. Drops peers that have not answered for too long."""
        for peer in [p for p, at in self._asked.items() if now >= at + PATIENCE_SECONDS]:
            del self._asked[peer]
        dawdling = all(now >= at + DAWDLE_SECONDS for at in self._asked.values())
        if self.done or not self._waiting or not dawdling or len(self._asked) >= AT_ONCE:
            return []
        peer = self._waiting.pop(0)
        self._asked[peer] = now
        return [SyncQuery(peer, self._round)]

    def on_answer(self, peer: PeerId, answer: SyncAnswer | None, now: float) -> None:
        """Process the answer of `peer`; None if it gave none."""
        asked = self._asked.pop(peer, None)
        if asked is not None and answer is not None and self.found is None:
            self.found = peer, answer
