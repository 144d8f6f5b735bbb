"""Rate limit of gossip messages per author, whichever peer forwards them.

An honest author paces itself (`gossip`). Of a message beyond a multiple of that pace only the author's
id is read: it is neither decoded nor forwarded, and if it comes straight from its author its signature
is not verified. So a flood ends at the author's own neighbours. Exceeding the limit is no offence,
because a connection that was blocked delivers a minute of messages at once. Of messages that another
peer forwards, only accepted ones are counted: otherwise a peer could silence an author by repeating its
old messages.
"""

from __future__ import annotations

from ...protocol.util.token_bucket import TokenBuckets, TokenRate

# An author sends at most 40 a second, and a fast lone member sends ten: a minute's worth may arrive at
# once.
_ALLOWANCE = TokenRate(at_once=1024.0, per_second=80.0)
# Members, and peers that ask to become one.
_MAX_AUTHORS = 4096


class AuthorRateLimit:
    """The message budgets of all authors. Times are on any steady clock."""

    def __init__(self) -> None:
        self._budgets: TokenBuckets[bytes] = TokenBuckets(_MAX_AUTHORS)

    def take(self, author: bytes, now: float) -> bool:
        """Count a message; return whether it is within the budget."""
        return self._budgets.take(author, _ALLOWANCE, now)

    def would_admit(self, author: bytes, now: float) -> bool:
        """Whether one more message would be within the budget."""
        return self._budgets.balance(author, _ALLOWANCE, now) >= 1.0
