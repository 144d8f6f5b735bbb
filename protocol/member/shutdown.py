"""Shutdown after a finished run: a finished member may exit once no peer has fetched the result for a
while.

Members announce what they have (`view`), and a connected one that still catches up is waited for. Peers
that are not members announce nothing: a newcomer that came too late, or an observer that keeps the
result for others. They ask, which shows that they are there. So a member stays while it is asked for
records or blobs, but not for ever.
"""

from __future__ import annotations

import math

CHECK_INTERVAL_SECONDS = 0.5
"""Interval at which a follower that is not a member polls for the next record, near the end."""

# Four polls: a follower that missed the end, or a record before it, has asked again by then.
_WATCHED_SECONDS = 4 * CHECK_INTERVAL_SECONDS
# A chunk of 4 MiB takes this long at 1 Mbit/s, and the next one is requested only then.
_FETCHED_SECONDS = 30.0
LONGEST_SECONDS = 3600.0
"""The longest time for which a finished member stays: requests cost nothing, and neither does being
behind."""


class ShutdownTimer:
    """When a node that needs nothing more may exit. Times are in seconds of any steady clock."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._until = -math.inf

    def gave(self, now: float, *, blob: bool) -> None:
        """Note that a non-member received records that it lacks, or requested a `blob` of a snapshot."""
        self._until = max(self._until, now + (_FETCHED_SECONDS if blob else _WATCHED_SECONDS))

    def may_go(self, now: float, *, watched: bool) -> bool:
        """Whether a node that no member needs any more may exit.

        `watched`: whether a non-member is connected.
        """
        if self._since is None:
            self._since = now
        until = min(max(self._until, self._since + _WATCHED_SECONDS), self._since + LONGEST_SECONDS)
        return not watched or now >= until
