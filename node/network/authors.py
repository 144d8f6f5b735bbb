"""How many gossip messages of one author a node listens to, whoever passes them on.

An honest author paces itself (`gossip`). A message beyond a multiple of that pace costs a look at the
author's name: it is not verified where that can be helped, not decoded, and not passed on, so that a
flood ends at the author's own neighbours. It is no offence either: a line that was held up delivers the
words of a minute at once. If somebody else passes messages on, only accepted ones are counted: or a peer
that repeats an author's old words would silence it.
"""

from __future__ import annotations

from ...protocol.wire.allowance import Allowance, Budgets

# An author says 40 a second at most, and ten where a lone member is fast: a minute of those may come
# at once.
_ALLOWANCE = Allowance(at_once=1024.0, per_second=80.0)
# Members, and whoever asks to become one.
_MAX_AUTHORS = 4096


class Authors:
    """The budgets of all authors. Times are on any steady clock."""

    def __init__(self) -> None:
        self._budgets: Budgets[bytes] = Budgets(_MAX_AUTHORS)

    def admits(self, author: bytes, now: float) -> bool:
        """Count a message; whether it is to be listened to."""
        return self._budgets.take(author, _ALLOWANCE, now)

    def hears(self, author: bytes, now: float) -> bool:
        """Whether one more would be listened to."""
        return self._budgets.balance(author, _ALLOWANCE, now) >= 1.0
