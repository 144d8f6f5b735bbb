"""A node's request to be admitted, repeated until a record grants it."""

from __future__ import annotations

from ..wire.messages import JoinRequest

# Interval at which a request is repeated. One is valid for the next few rounds only.
_REPEAT_SECONDS = 2.0
# How long a newcomer tries to catch up with the chain before it asks anyway. If rounds are shorter than
# the transfer of an update, it never catches up before it is a member; then the others wait for it.
_LAG_SECONDS = 10.0


class AdmissionRequest:
    """Timer of a node's join requests. Times are in seconds."""

    def __init__(self, ticket: bytes, now: float) -> None:
        """`ticket` is the invitation, in a swarm that requires one."""
        self._ticket = ticket
        self._last = self._current = now
        self._round = -1

    def renew(self, round: int, current: bool, now: float) -> JoinRequest | None:
        """Return the request to send now, or None if it is not due. In a new `round` one is due at once.

        `current` says whether the parameters contain everything decided. If not, they lack only a few
        rounds.
        """
        if current:
            self._current = now
        early = now - self._current < _LAG_SECONDS and not current
        if early or (self._round == round and now - self._last < _REPEAT_SECONDS):
            return None
        self._last, self._round = now, round
        return JoinRequest(round, self._ticket)
