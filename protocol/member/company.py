"""Who else is at work on a round: heard in it, or gone on from it.

A member judges by this what it may believe: a decision that a few have signed is no news to who hears
the others at work on the same round.
"""

from __future__ import annotations

from ...crypto.identity import PeerId
from ..wire.membership import Membership
from ..wire.messages import JoinRequest, Message, RecordId, parent_of, round_of


class Company:
    """Those whom one member heard around one round. Times are seconds of any steady clock."""

    def __init__(self, round: int, parent: RecordId, now: float) -> None:
        """`parent` is the record before it."""
        self._round = round
        self._parent = parent
        self._created = now
        # When each was last heard to work on this very round; or on the next, after which record.
        self._here: dict[PeerId, float] = {}
        self._ahead: dict[PeerId, tuple[RecordId | None, float]] = {}

    def meet(self, sender: PeerId, message: Message, now: float) -> None:
        """Somebody spoke: note whether it stands where this member does, or has gone on, and from which
        record, if that is known: what is said further ahead names later ones only."""
        ahead, parent = round_of(message) - self._round, parent_of(message)
        if isinstance(message, JoinRequest):
            # A peer that asks to be admitted works on no round.
            self._here.pop(sender, None)
        elif ahead == 0 and parent in (None, self._parent):
            self._here[sender] = now
        elif ahead == 1 and parent is not None:
            self._here.pop(sender, None)
            self._ahead[sender] = parent, now
        elif ahead > 1:
            base, _ = self._ahead.get(sender, (None, now))
            self._ahead[sender] = base, now

    def within(self, seconds: float, now: float, *, instead_of: RecordId | None) -> set[PeerId]:
        """Who was heard to work on this very round within so many seconds. With `instead_of`, a decision
        for this round, those that went on from another record as well."""
        here = {peer for peer, at in self._here.items() if now - at <= seconds}
        if instead_of is not None:
            here |= {
                peer
                for peer, (base, at) in self._ahead.items()
                if base != instead_of and now - at <= seconds
            }
        return here

    def last(self, membership: Membership) -> float:
        """When a member was last heard to work on this very round; when it began, if none was."""
        return max([self._created, *(at for peer, at in self._here.items() if peer in membership)])
