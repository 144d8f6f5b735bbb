"""Lag detector: notices rounds that others have decided, and chains other than ours.

Gossip gives the signs: a message names a round that we have not reached, or builds on a record that we
do not have. Only a request to peers shows which of the two is the case. This module decides when to send
one, and how often.
"""

from __future__ import annotations

from ...crypto.identity import PeerId
from ..chain.ledger import Ledger
from ..wire.errors import ProtocolError
from ..wire.messages import Heartbeat, Message, parent_of, round_of
from .effects import AskSync, CompareChains, Effect
from .message_store import FUTURE_ROUNDS

# Interval between requests for records while no decision arrives.
_SYNC_SECONDS = 2.0
# Shorter interval after a message of a later round: some peer has the records in between.
_SYNC_LAG_SECONDS = 0.5
# A member that sees one decision after another may still fall behind, if gossip waits in queues and the
# decisions arrive later and later. So it asks at this interval in any case.
_TIP_SECONDS = 10.0
# Minimum interval between comparisons of chains: one takes several requests to every peer, and a liar
# can trigger it.
_COMPARE_SECONDS = 10.0
# Without any decision for this long, chains are compared even if there is no sign of another one:
# members of the other chain may be behind, and then send only heartbeats, which name no record. While
# updates are awaited, the limit is this multiple of the `patience` if that is longer.
_STALLED_SECONDS = 60.0
_STALLED_PATIENCE = 16


class LagDetector:
    """Signs that others are ahead of this member, or on another chain. Times are in seconds."""

    def __init__(self, now: float) -> None:
        self._behind = False
        self._other_chain = False
        self._last_sync = self._began = now
        self._last_comparison = float("-inf")

    def note_behind(self) -> None:
        """Note that some peer seems to have a record that we lack."""
        self._behind = True

    def note_misfit(self, sender: PeerId, message: Message, ledger: Ledger) -> None:
        """Handle a message that does not fit our chain's current rounds.

        If a present or former member sent it, there may be another chain: the message builds on another
        record than ours, or a peer that is not a member on our chain acts as a member. (Only a member
        can be ahead of us; and if no slot can end, members send only heartbeats.)
        """
        if not ledger.has_been_member(sender):
            return
        round_, parent = round_of(message), parent_of(message)
        if round_ > len(ledger) or isinstance(message, Heartbeat):
            self._other_chain |= sender not in ledger.membership(len(ledger))
        else:
            self._other_chain |= parent is not None and parent != ledger.parent(round_)

    def note_other_chain(self) -> None:
        """Note that the others may be on another chain."""
        self._other_chain = True

    def screen(self, sender: PeerId, message: Message, ledger: Ledger, asks: bool) -> None:
        """Raise `ProtocolError` for a message that does not fit the rounds around ours.

        `asks`: the sender has asked for admission, so it may be a member by a record that we have not
        seen.
        """
        round_, ours = round_of(message), len(ledger)
        if not ours - 1 <= round_ <= ours + FUTURE_ROUNDS:
            # This is not a fault of the sender: one side is behind.
            self.note_misfit(sender, message, ledger)
            self._behind |= round_ > ours
            raise ProtocolError("other_round", f"a message of round {round_} in round {ours}")
        past = round_ < ours and sender in ledger.membership(ours - 1)
        if not asks and not past and sender not in ledger.membership(ours):
            self.note_misfit(sender, message, ledger)
            raise ProtocolError("not_member", "a message from a non-member")

    def requests(
        self, ledger: Ledger, *, last: float, patience: float, follows: bool, now: float
    ) -> list[Effect]:
        """Return the requests to send now.

        The last decision came at the time `last`. Without a decision we ask after `patience` seconds, or
        after the usual time if that is longer. A node that only `follows`, so that no peer waits for it,
        asks at the usual interval whether there are decisions or not.
        """
        effects: list[Effect] = []
        wait = _SYNC_LAG_SECONDS if self._behind else max(_SYNC_SECONDS, patience)
        anyway = _SYNC_SECONDS if follows else max(_TIP_SECONDS, patience)
        asked = now - self._last_sync
        if asked >= anyway or min(asked, now - last) >= wait:
            self._last_sync, self._behind = now, False
            effects.append(AskSync(len(ledger)))
        compared = self._last_comparison
        still = now - max(last, compared, self._began)
        stalled = still >= max(_STALLED_SECONDS, _STALLED_PATIENCE * patience)
        if stalled or (self._other_chain and now - compared >= _COMPARE_SECONDS):
            self._last_comparison, self._other_chain = now, False
            effects.append(CompareChains(max(0, len(ledger) - 1)))
        return effects
