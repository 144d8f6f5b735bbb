"""Parting from a run that is over: who has what came out goes once nobody fetches it any more.

Members say what they have (`view`). Somebody without a part in the swarm says nothing: a newcomer who
came too late, or an observer who keeps the result for others. It asks, and that is how it is known. So a
member stays for as long as it is asked for records or blobs, but nobody is kept for ever.
"""

from __future__ import annotations

import math

LOOK_SECONDS = 0.5
"""How often whoever follows a run without a part in it looks for the next record, near the end."""

# Four looks: somebody who missed the end, or a record before it, has asked again by then.
_LOOKED_SECONDS = 4 * LOOK_SECONDS
# A chunk of 4 MiB takes so long at 1 Mbit/s, and only then is the next one asked for.
_FETCHED_SECONDS = 30.0
# Asking costs nothing, so it is no reason to stay for longer.
_LONGEST_SECONDS = 3600.0


class Parting:
    """When one node that needs nothing more may go. Times are in seconds of any steady clock."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._until = -math.inf

    def gave(self, now: float, *, blob: bool) -> None:
        """Somebody who is no member got records that it lacks, or asked for a `blob` of a snapshot."""
        self._until = max(self._until, now + (_FETCHED_SECONDS if blob else _LOOKED_SECONDS))

    def may_go(self, now: float, *, watched: bool) -> bool:
        """Whether to go, for one whom no member needs any more. `watched`: whether somebody who is no
        member is connected."""
        if self._since is None:
            self._since = now
        until = min(max(self._until, self._since + _LOOKED_SECONDS), self._since + _LONGEST_SECONDS)
        return not watched or now >= until
