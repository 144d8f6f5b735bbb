"""How long a node makes way after somebody was there: pure."""

from __future__ import annotations

QUIET_SECONDS = 300.0
"""After so much quiet a polite node comes back: a game's menu and a coffee are shorter."""


class Courtesy:
    """Remembers when somebody was there last. Times are seconds of any one clock."""

    def __init__(self, quiet_seconds: float = QUIET_SECONDS) -> None:
        self._quiet = quiet_seconds
        self._busy_until: float | None = None

    def hear(self, idle_seconds: float | None, now: float) -> bool:
        """Somebody was there `idle_seconds` ago (0: is there); None: nobody can say. Returns whether to
        make way. What cannot be said keeps nobody from work, but ends no quiet either."""
        if idle_seconds is not None:
            until = now - idle_seconds + self._quiet
            if self._busy_until is None or until > self._busy_until:
                self._busy_until = until
        return self._busy_until is not None and now < self._busy_until
