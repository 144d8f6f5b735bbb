"""Which updates this member has computed, and which of them wait for their round.

A member at the tip lets its trainer compute one update, for the round at the tip. With `overlap` the
trainer then computes the next round's update as well, on the current parameters, while this round's
updates are exchanged and agreed on. Such an update is announced as soon as its round has come, so it
names the previous record like any other. If no update waits (in the first round after a join, a restart
or a resync, or after the member fell behind), the update for the round at the tip is computed first. If
that update comes too late (in rounds so short that all others have computed theirs in advance), the
member computes the next round's update instead, or it would always be late.

A member that needs several rounds for one sequence starts as soon as the sequence is assigned, on the
parameters of that time, and announces the update in the round in which it is due. Meanwhile it applies
records and votes as usual. If it drops out of the swarm, the sequence is assigned to another member; if
it returns before the update would have been due, that update is worthless: its new assignment counts.
"""

from __future__ import annotations

from ...crypto.identity import PeerId
from ..chain.ledger import Ledger
from ..wire.messages import Announcement
from .capacity import Capacity
from .effects import Train
from .inputs import Trained

_NOTHING = -1, -1


def announcement_of(
    made: Trained, ledger: Ledger, fingerprint: int, capacity: int, commitment: bytes
) -> Announcement:
    """Return the announcement of this member's update `made`.

    `fingerprint` is that of the member's parameters at the tip of `ledger`, and `capacity` is the value
    to announce; `commitment` is empty in a swarm without a beacon.
    """
    return Announcement(
        round=made.round,
        parent=ledger.head,
        update=made.update,
        size=made.size,
        tokens=made.tokens,
        loss=made.loss,
        fingerprint=fingerprint,
        capacity=capacity,
        max_version=ledger.versions.max_version,
        commitment=commitment,
    )


class Training:
    """Work given to one member's trainer, and the update that is ahead of its round."""

    def __init__(self, me: PeerId, *, overlap: bool) -> None:
        self._me = me
        self._overlap = overlap
        self.capacity = Capacity()
        """Measured capacity of the trainer."""
        # The last update that the trainer was asked for: the round it is due in, and the one that
        # assigns it.
        self._requested = _NOTHING
        # The round of the last update begun only when its round had come; whether that was too late.
        self._begun_at_tip = -1
        self._too_slow = False
        self._ahead: Trained | None = None

    def forget(self) -> None:
        """Reset after parameters were loaded: updates computed on other ones are worthless."""
        self._requested, self._begun_at_tip = _NOTHING, -1
        self._too_slow, self._ahead = False, None

    def keep(self, made: Trained, tip: int) -> None:
        """Keep an update that cannot be announced now until its round, not before `tip`, has come.

        An update that is too late is refunded when the record that does not count it is applied.
        """
        if (made.round, made.assigned_in) == self._requested and made.round >= tip:
            self._ahead = made
        elif self._overlap and made.round == made.assigned_in == self._begun_at_tip:
            self._too_slow = True

    def due(self, ledger: Ledger) -> Trained | None:
        """Return the update that waited for the round at the tip, if any; it is returned once."""
        made, tip = self._ahead, len(ledger)
        if made is None or made.round > tip:
            return None
        self._ahead = None
        return (
            made if made.round == tip and self.owes(made.round, made.assigned_in, ledger) else None
        )

    def owes(self, due: int, assigned_in: int, ledger: Ledger) -> bool:
        """Whether the swarm waits for this member's work that is assigned in one round and due in
        another; an aggregate is assigned by the round in which it is due."""
        if ledger.manifest.aggregates_in(due):
            return due == assigned_in == len(ledger) and self._me in ledger.assignments.due(due)
        open_work = ledger.assignments.open_work(self._me)
        return any(
            (due, assigned_in) == (work_due, work_assigned_in)
            for work_due, work_assigned_in, _ in open_work
        )

    def next_work(self, ledger: Ledger, *, announced: bool) -> list[Train]:
        """Return what to compute next, as a member of the round at the tip of `ledger`.

        `announced` says whether this member's update for that round is announced.
        """
        tip = len(ledger)
        if announced:
            self._too_slow = False
        requested_round, _ = self._requested
        if requested_round >= tip and not self.owes(*self._requested, ledger):
            # The member was removed from the swarm after this request, and is back.
            self._requested, self._ahead, requested_round = _NOTHING, None, -1
        if requested_round > tip or (requested_round == tip and not announced):
            return []
        for due, assigned_in, samples in ledger.assignments.open_work(self._me):
            if not ledger.manifest.schedule.trains(due):
                continue
            if due == tip:
                if announced or self._too_slow:
                    continue
                self._begun_at_tip = tip
            self._requested = due, assigned_in
            return [Train(due, ledger.head, samples(), assigned_in)]
        return []
