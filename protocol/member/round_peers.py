"""Round peers: which other members work on a round, or have gone on to a later one.

A member uses this to judge decisions: one that only a few have signed is doubtful while the other
members are seen working on the same round.
"""

from __future__ import annotations

from ...crypto.identity import PeerId
from ..wire.membership import Membership
from ..wire.messages import JoinRequest, Message, RecordId, parent_of, round_of


class RoundPeers:
    """Other members' positions around one round. Times are seconds of any steady clock."""

    def __init__(self, round: int, parent: RecordId, now: float) -> None:
        """`parent` is the record of the previous round."""
        self._round = round
        self._parent = parent
        self._created = now
        # When each last worked on this very round. When each last worked on a later round, and the
        # record of this round on which it builds, if known.
        self._working: dict[PeerId, float] = {}
        self._ahead: dict[PeerId, tuple[RecordId | None, float]] = {}

    def note_activity(self, sender: PeerId, message: Message, now: float) -> None:
        """Note whether the sender works on this round or has gone on, and from which record of it.

        Messages of rounds after the next do not show that record, since they name later ones.
        """
        ahead, parent = round_of(message) - self._round, parent_of(message)
        if isinstance(message, JoinRequest):
            # A peer that asks to be admitted works on no round.
            self._working.pop(sender, None)
        elif ahead == 0 and parent in (None, self._parent):
            self._working[sender] = now
        elif ahead == 1 and parent is not None:
            self._working.pop(sender, None)
            self._ahead[sender] = parent, now
        elif ahead > 1:
            base, _ = self._ahead.get(sender, (None, now))
            self._ahead[sender] = base, now

    def within(self, seconds: float, now: float, *, replacing: RecordId | None) -> set[PeerId]:
        """Return the members seen working on this very round within the last `seconds`.

        With `replacing`, the decided record of this round, members that went on from another record (or
        an unknown one) count, too.
        """
        working = {peer for peer, at in self._working.items() if now - at <= seconds}
        if replacing is not None:
            working |= {
                peer
                for peer, (base, at) in self._ahead.items()
                if base != replacing and now - at <= seconds
            }
        return working

    def last(self, membership: Membership) -> float:
        """Return when a member was last seen working on this very round; if none was, when the round
        began."""
        return max(
            [self._created, *(at for peer, at in self._working.items() if peer in membership)]
        )
