"""Shutdown after a finished run: a finished member may exit once no peer has fetched the result for a
while.

Members announce what they have (`view`), and a connected member that still catches up is waited for.
Other peers announce nothing (a newcomer that came too late, or an observer that keeps the result for
others), but their requests show that they are there. So a member stays while it is asked for records or
blobs, up to a limit.
"""

from __future__ import annotations

import math

CHECK_INTERVAL_SECONDS = 0.5
"""Interval at which a follower that is not a member polls for the next record, near the end."""

# Time to wait for the next request for records. A follower that missed the end, or a record before it,
# asks again within four polls.
_WATCHED_SECONDS = 4 * CHECK_INTERVAL_SECONDS
# Time to wait for the next request for a blob: a chunk of 4 MiB takes about this long at 1 Mbit/s, and
# the next one is requested only then.
_FETCHED_SECONDS = 30.0
LONGEST_SECONDS = 3600.0
"""The longest time in seconds for which a finished member stays. Without a limit, any peer could keep it
running, since requests cost nothing."""


class ShutdownTimer:
    """When a node that needs nothing more may exit. Times are in seconds of any steady clock."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._until = -math.inf

    def note_request(self, now: float, *, blob: bool) -> None:
        """Note that a non-member received records that it lacked or, with `blob`, requested a blob of a
        snapshot."""
        self._until = max(self._until, now + (_FETCHED_SECONDS if blob else _WATCHED_SECONDS))

    def may_go(self, now: float, *, watched: bool) -> bool:
        """Whether a node that no member needs any more may exit.

        `watched`: whether a non-member is connected.
        """
        if self._since is None:
            self._since = now
        until = min(max(self._until, self._since + _WATCHED_SECONDS), self._since + LONGEST_SECONDS)
        return not watched or now >= until
