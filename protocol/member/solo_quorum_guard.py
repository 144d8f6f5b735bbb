"""Solo quorum guard: listening before deciding alone, for a member whose votes are a quorum by
themselves.

While such a member is away, the others may declare all members with votes silent and go on with one vote
each (`chain/certificates`). When it comes back, it could at once decide the very round that they have
decided. So it casts no ballot before it has listened for a lease, in which it learns how they went on.
It is *in touch* from its first decision after that until it is away again, or learns a decision from
others.

If all members have one vote each, this does not matter: none can decide without the others before it has
missed them for a lease.
"""

from __future__ import annotations


class SoloQuorumGuard:
    """When one member began to listen, and what it has heard. Times are seconds of any steady clock."""

    def __init__(self, now: float) -> None:
        self._since: float | None = now
        self._heard_nobody = False

    @property
    def in_touch(self) -> bool:
        """Whether it knows that the others did not go on without it."""
        return self._since is None

    def continues(self, seconds: float, now: float) -> bool:
        """Whether it has listened for at most `seconds`."""
        return self._since is not None and now - self._since <= seconds

    def begin(self, now: float) -> None:
        """Begin to listen, after an absence: what this member knows may be outdated."""
        self._since = now

    def decided(self, *, beyond_doubt: bool, listens: bool, now: float) -> None:
        """Note that a round is decided; `beyond_doubt` if that happened in this member's presence and
        without doubt. If it still `listens`, it had decided the round before a restart."""
        self._heard_nobody = False
        if not beyond_doubt:
            self._since = now
        elif not listens:
            self._since = None

    def note_others(self, anyone_heard: bool, now: float) -> None:
        """Note whether any other member was heard lately. If members are heard again after none was,
        they may have gone on in between, so this one begins to listen. While it hears none, it goes on
        alone."""
        if anyone_heard and self._heard_nobody:
            self._since = now
        self._heard_nobody = not anyone_heard
