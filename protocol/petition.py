"""A node's request to be admitted, said again until a record grants it."""

from __future__ import annotations

from .messages import JoinRequest

# A request is good for the next few rounds only.
_REPEAT_SECONDS = 2.0


class Petition:
    """When to ask. Times are in seconds."""

    def __init__(self, ticket: bytes, now: float) -> None:
        """`ticket` is the invitation, for a swarm that wants one."""
        self._ticket = ticket
        self._last = now
        self._round = -1

    def renew(self, round: int, now: float) -> JoinRequest | None:
        """What to ask in `round` now, if it is time: at once in a new one."""
        if self._round == round and now - self._last < _REPEAT_SECONDS:
            return None
        self._last, self._round = now, round
        return JoinRequest(round, self._ticket)
