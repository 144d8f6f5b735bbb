"""A node's request to be admitted, said again until a record grants it."""

from __future__ import annotations

from ..wire.messages import JoinRequest

# A request is good for the next few rounds only.
_REPEAT_SECONDS = 2.0
# How long a newcomer tries to get to the end of the chain before it asks. Where rounds are shorter than
# an update's way it never does, and once it is a member, the others wait for it.
_BEHIND_SECONDS = 10.0


class AdmissionRequest:
    """When to ask. Times are in seconds."""

    def __init__(self, ticket: bytes, now: float) -> None:
        """`ticket` is the invitation, for a swarm that wants one."""
        self._ticket = ticket
        self._last = self._current = now
        self._round = -1

    def renew(self, round: int, current: bool, now: float) -> JoinRequest | None:
        """What to ask in `round` now, if it is time: at once in a new one.

        `current` says whether the parameters contain everything decided; if not, they nearly do.
        """
        if current:
            self._current = now
        early = now - self._current < _BEHIND_SECONDS and not current
        if early or (self._round == round and now - self._last < _REPEAT_SECONDS):
            return None
        self._last, self._round = now, round
        return JoinRequest(round, self._ticket)
