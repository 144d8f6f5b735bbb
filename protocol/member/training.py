"""Which updates this member has computed, and which of them wait for their round.

A member at the tip has one update computed, for the round at the tip. With `overlap` it then has the
next round's computed as well, on the parameters that there are, while this round's updates are exchanged
and agreed on. Such an update is announced as soon as its round has come, so it names the record before
it like any other. Where none waits (the first round after a join, a restart or a resync, or for a member
that fell behind), the member computes the round at the tip first. If that came too late (rounds are
short in which all others are done beforehand), it computes the next one instead, or it would always be
late.

Who needs several rounds for one sequence is told at once when one is dealt to it, on the parameters that
there are then, and announces the update in the round in which it is due. Meanwhile it applies what is
decided and votes like anybody. If it falls out of the swarm, the sequence is dealt to somebody else; if
it is back before the update would have been due, that is worth nothing: what it is dealt anew counts.
"""

from __future__ import annotations

from ...crypto.identity import PeerId
from ..chain.ledger import Ledger
from ..wire.messages import Announcement
from .capacity import Capacity
from .effects import Tally, Train
from .inputs import Trained

_NOTHING = -1, -1


def announcement_of(
    made: Trained, ledger: Ledger, fingerprint: int, capacity: int, commitment: bytes
) -> Announcement:
    """What is said of an own update by a member whose parameters, at the tip of `ledger`, have this
    fingerprint, and that has this capacity; `commitment` is empty where nothing is drawn."""
    return Announcement(
        round=made.round,
        parent=ledger.head,
        update=made.update,
        size=made.size,
        tokens=made.tokens,
        loss=made.loss,
        fingerprint=fingerprint,
        capacity=capacity,
        speaks=ledger.versions.speaks,
        commitment=commitment,
    )


class Training:
    """What one member's trainer is told to compute, and the update that is ahead of its round."""

    def __init__(self, me: PeerId, *, overlap: bool) -> None:
        self._me = me
        self._overlap = overlap
        self.capacity = Capacity()
        """What the trainer can do."""
        # The last update that the trainer was told to compute: when it is due, and who deals it.
        self._told = _NOTHING
        # The last round for which a tally was asked for. One may be made while an update is ahead.
        self._asked = -1
        # The last one that it began when that round had come, and whether that was too late.
        self._begun_at_tip = -1
        self._too_slow = False
        self._ahead: Trained | None = None

    def forget(self) -> None:
        """The parameters were loaded anew: what was computed on others is worth nothing."""
        self._told, self._asked, self._begun_at_tip = _NOTHING, -1, -1
        self._too_slow, self._ahead = False, None

    def keep(self, made: Trained, tip: int) -> None:
        """An update that cannot be announced now: it waits if its round is still to come.

        If it is too late, it is refunded when the record, which does not count it, is applied.
        """
        if (made.round, made.dealt) == self._told and made.round >= tip:
            self._ahead = made
        elif self._overlap and made.round == made.dealt == self._begun_at_tip:
            self._too_slow = True

    def due(self, ledger: Ledger) -> Trained | None:
        """The update that waited for the round at the tip, if there is one; it is given out once."""
        made, tip = self._ahead, len(ledger)
        if made is None or made.round > tip:
            return None
        self._ahead = None
        return made if made.round == tip and self.owes(made.round, made.dealt, ledger) else None

    def owes(self, due: int, dealt: int, ledger: Ledger) -> bool:
        """Whether the swarm waits for what a round has dealt to this member, as due in another; a tally
        is dealt by the round in which it is due."""
        if ledger.manifest.speaks(due):
            return due == dealt == len(ledger) and self._me in ledger.dealing.due(due)
        works = ledger.dealing.works(self._me)
        return any((due, dealt) == (work_due, work_dealt) for work_due, work_dealt, _ in works)

    def next_tally(self, ledger: Ledger, *, announced: bool, patience: float) -> list[Tally]:
        """The tally to make for the round at the tip, as a member of it, once the record of the round
        before is in the parameters; none unless this member speaks in it. Sheets that are still on their
        way are worth so many seconds of `patience`."""
        tip, speaking = len(ledger), ledger.speaking
        asked = announced or self._asked == tip
        if speaking is None or asked or not self.owes(tip, tip, ledger):
            return []
        place, told = speaking.place(tip, self._me), ledger[tip - 1].record
        assert place is not None  # or nothing would be due
        self._asked = tip
        found = ledger.dealing.counts(told)
        counts = tuple(found[entry.peer] for entry in told.updates)
        return [Tally(tip, *place, told, counts, speaking.agreed(place[0]), patience)]

    def next_work(self, ledger: Ledger, *, announced: bool) -> list[Train]:
        """What to compute next, at the tip of `ledger`, as a member of its round.

        `announced` says whether the own update for that round is announced.
        """
        tip = len(ledger)
        if announced:
            self._too_slow = False
        told, _ = self._told
        if told >= tip and not self.owes(*self._told, ledger):
            # It fell out of the swarm meanwhile and is back.
            self._told, self._ahead, told = _NOTHING, None, -1
        if told > tip or (told == tip and not announced):
            return []
        for due, dealt, samples in ledger.dealing.works(self._me):
            if not ledger.manifest.schedule.trains(due):
                continue
            if due == tip:
                if announced or self._too_slow:
                    continue
                self._begun_at_tip = tip
            self._told = due, dealt
            return [Train(due, ledger.head, samples(), dealt)]
        return []
