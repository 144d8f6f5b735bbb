"""Idle grace: how long a node stays paused after the computer was in use; a computation without I/O."""

from __future__ import annotations

QUIET_SECONDS = 300.0
"""Idle time after which a polite node resumes: longer than a pause in a game or a coffee break."""


class IdleGrace:
    """Time of the last use by others. Times are seconds of any one clock."""

    def __init__(self, quiet_seconds: float = QUIET_SECONDS) -> None:
        self._quiet = quiet_seconds
        self._busy_until: float | None = None

    def note_use(self, idle_seconds: float | None, now: float) -> bool:
        """Note that the last use was `idle_seconds` ago (0: it is in use; None: unknown). Return whether
        to pause.

        An unknown idle time starts no pause, but does not end one either.
        """
        if idle_seconds is not None:
            until = now - idle_seconds + self._quiet
            if self._busy_until is None or until > self._busy_until:
                self._busy_until = until
        return self._busy_until is not None and now < self._busy_until
