"""Noticing what was missed: rounds that others have decided, and chains that are not ours.

Gossip tells it in passing: somebody speaks of a round that we have not reached, or builds on a record
that we do not have. Only asking shows what it is; this says when to ask, and how often.
"""

from __future__ import annotations

from ...crypto.identity import PeerId
from ..chain.ledger import Ledger
from ..wire.errors import ProtocolError
from ..wire.messages import Heartbeat, Message, parent_of, round_of
from .effects import AskSync, Effect, Fork
from .mailbox import FUTURE_ROUNDS

_SYNC_SECONDS = 2.0
# Something of a later round arrived: the record in between is known to somebody.
_SYNC_BEHIND_SECONDS = 0.5
# A member that hears one decision after another may still fall behind, if these are ever older: gossip
# queues, and nothing in it tells where the others are. So it asks now and then in any case.
_TIP_SECONDS = 10.0
# Comparing chains takes several requests to everybody, and a liar can make us do it.
_COMPARE_SECONDS = 10.0
# Where nothing is decided for so long, chains are compared without a sign as well: members of the other
# one may be behind, and then they say heartbeats only, which name no record. While updates are waited
# for, after so many times what is usual.
_STALLED_SECONDS = 60.0
_STALLED_PATIENCE = 16


class Divergence:
    """What one member noticed of others being further, or elsewhere. Times are in seconds."""

    def __init__(self, now: float) -> None:
        self._behind = False
        self._parted = False
        self._last_sync = self._began = now
        self._last_comparison = float("-inf")

    def behind(self) -> None:
        """Somebody seems to know a record that we lack."""
        self._behind = True

    def stray(self, sender: PeerId, message: Message, ledger: Ledger) -> None:
        """A message that does not belong to our chain's present arrived.

        If it is from a present or former member there may be another chain: it builds on another record
        than ours, or a peer that our chain counts out speaks as a member. (Only a member gets ahead of
        us; and where no slot can end, members say heartbeats only.)
        """
        if not ledger.has_been_member(sender):
            return
        round_, parent = round_of(message), parent_of(message)
        if round_ > len(ledger) or isinstance(message, Heartbeat):
            self._parted |= sender not in ledger.membership(len(ledger))
        else:
            self._parted |= parent is not None and parent != ledger.parent(round_)

    def parted(self) -> None:
        """The others may be on another chain."""
        self._parted = True

    def screen(self, sender: PeerId, message: Message, ledger: Ledger, asks: bool) -> None:
        """Refuse what has no place in the rounds around ours; `asks` is whether the sender asks for
        admission, and so may be a member by a record that we have not seen. Raises `ProtocolError`."""
        round_, ours = round_of(message), len(ledger)
        if not ours - 1 <= round_ <= ours + FUTURE_ROUNDS:
            # Not a fault by itself: one of the two is behind.
            self.stray(sender, message, ledger)
            self._behind |= round_ > ours
            raise ProtocolError("other_round", f"round {round_} while at {ours}")
        past = round_ < ours and sender in ledger.membership(ours - 1)
        if not asks and not past and sender not in ledger.membership(ours):
            self.stray(sender, message, ledger)
            raise ProtocolError("not_member", "a message from somebody who is no member")

    def questions(
        self, ledger: Ledger, *, last: float, patience: float, follows: bool, now: float
    ) -> list[Effect]:
        """What to ask others now. The `last` news came at that time; without any we ask as well,
        after `patience` seconds or what is usual, if that is longer. A node that only `follows`, so that
        nobody waits for it, asks as often whatever the news."""
        effects: list[Effect] = []
        wait = _SYNC_BEHIND_SECONDS if self._behind else max(_SYNC_SECONDS, patience)
        anyway = _SYNC_SECONDS if follows else max(_TIP_SECONDS, patience)
        asked = now - self._last_sync
        if asked >= anyway or min(asked, now - last) >= wait:
            self._last_sync, self._behind = now, False
            effects.append(AskSync(len(ledger)))
        compared = self._last_comparison
        still = now - max(last, compared, self._began)
        stalled = still >= max(_STALLED_SECONDS, _STALLED_PATIENCE * patience)
        if stalled or (self._parted and now - compared >= _COMPARE_SECONDS):
            self._last_comparison, self._parted = now, False
            effects.append(Fork(max(0, len(ledger) - 1)))
        return effects
