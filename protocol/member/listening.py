"""Listening before deciding alone, for a member whose votes are a quorum by themselves.

While such a member is away, the others may go on as heirs (`chain/certificates`): they call all silent
who have votes. It comes back, and could at once decide the very round that they have decided. So it
casts no ballot before it has listened for a lease, and learns meanwhile how they went on. It is *in
touch* from when it has decided a round after that, until it is away again, or learns from others what
was decided.

Where everybody has one vote nothing of this matters: nobody can decide without the others before it has
missed them for a lease.
"""

from __future__ import annotations


class Listening:
    """Since when one member listens, and what it has heard. Times are seconds of any steady clock."""

    def __init__(self, now: float) -> None:
        self._since: float | None = now
        self._deaf = False

    @property
    def in_touch(self) -> bool:
        """Whether it knows that nobody went on without it."""
        return self._since is None

    def goes_on(self, seconds: float, now: float) -> bool:
        """Whether it has not listened for so long yet."""
        return self._since is not None and now - self._since <= seconds

    def begin(self, now: float) -> None:
        """It was away: what it knows may be old."""
        self._since = now

    def decided(self, *, beyond_doubt: bool, listens: bool, now: float) -> None:
        """A round is decided, before the eyes of this member and `beyond_doubt`, or not. If it still
        `listens`, it had decided it in an earlier life."""
        self._deaf = False
        if not beyond_doubt:
            self._since = now
        elif not listens:
            self._since = None

    def hears(self, somebody: bool, now: float) -> None:
        """Whether anybody else was heard of late. Who is heard again may have gone on; who hears nobody
        at all goes on alone."""
        if somebody and self._deaf:
            self._since = now
        self._deaf = not somebody
