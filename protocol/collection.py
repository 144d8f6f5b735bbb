"""The updates of one round: who announced what, and what is held.

An update is *held* when its bytes are in the store and have passed the codec's checks; only held
updates are proposed and voted for, so whatever is agreed on is available.
"""

from __future__ import annotations

from ..crypto.hashing import ContentId
from ..crypto.identity import PeerId
from .messages import Announcement, UpdateEntry


class Collection:
    """Announcements of one round by member, with the time each update was held."""

    def __init__(self) -> None:
        self._announced: dict[PeerId, tuple[Announcement, bytes]] = {}
        self._arrivals: dict[PeerId, float] = {}
        self._failed: set[PeerId] = set()

    def announce(self, peer: PeerId, announcement: Announcement, signature: bytes) -> bool:
        """Take in an announcement; the first of a member counts. Returns whether it was new."""
        if peer in self._announced:
            return False
        self._announced[peer] = (announcement, signature)
        return True

    def announced(self, peer: PeerId) -> bool:
        """Whether the member has announced its update."""
        return peer in self._announced

    def held(self, update: ContentId, now: float) -> None:
        """The update with this id is in the store and good."""
        for peer, (announcement, _) in self._announced.items():
            if announcement.update == update:
                self._arrivals.setdefault(peer, now)

    def bad(self, update: ContentId) -> set[PeerId]:
        """The update with this id is no update: whoever announced it will not be waited for."""
        culprits = {peer for peer, (a, _) in self._announced.items() if a.update == update}
        self._failed |= culprits
        return culprits

    def outstanding(self, expected: set[PeerId]) -> set[PeerId]:
        """Of the `expected` members, those whose update is still to come."""
        return expected - self._arrivals.keys() - self._failed

    def arrivals(self, start: float) -> list[float]:
        """How long after `start` each update was held, in seconds."""
        return [max(0.0, at - start) for at in self._arrivals.values()]

    @property
    def updates(self) -> set[ContentId]:
        """The ids of all announced updates."""
        return {announcement.update for announcement, _ in self._announced.values()}

    @property
    def last_arrival(self) -> float | None:
        """When the latest held update came."""
        return max(self._arrivals.values(), default=None)

    def entries(self, fingerprint: int) -> list[UpdateEntry]:
        """Record entries, sorted by peer, of all held updates trained from these parameters."""
        return [
            UpdateEntry(
                peer=peer,
                update=announcement.update,
                size=announcement.size,
                tokens=announcement.tokens,
                loss=announcement.loss,
                signature=signature,
            )
            for peer, (announcement, signature) in sorted(self._announced.items())
            if peer in self._arrivals and announcement.fingerprint == fingerprint
        ]
