"""Completeness of proposals: whether a leader names all the updates that an honest one would have.

A round's step is made from the updates that its record names. A leader that names only its own update
determines the step alone, and the shares of all other members shrink as if they had been late. With
committees, two byzantine aggregators whose honest colleagues are left out decide for their section. So a
member votes for a fresh record only if it names every update or aggregate that the member held *in good
time*: long enough before the proposal for an honest leader to have fetched it from any holder. A leader
waits until it holds what is due, or until its collect deadline. So an honest leader has everything that
was held before three quarters of that time, however early it proposes, and everything that was held a
quarter of that time before the proposal.

A member does not require its own update, because it cannot know whether others can fetch it already. If
a leader leaves out one member, all other members still refuse the record.

An honest leader may lack an update that a liar sent to some members only. It fetches that update from
these members, so this costs at most one slot. The requirement holds as long as byzantine members may
have led all slots so far: in the first `_WHOLE_SLOTS` slots, and in one more per possible byzantine
member. In later slots, two thirds of what was held is enough, and after one more slot per member any
record is; otherwise a swarm whose members cannot fetch each other's updates would stop.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Literal

from ...crypto.identity import PeerId
from ..wire.membership import FaultModel, Membership, max_byzantine_votes
from ..wire.messages import Record, RecordId
from .timeouts import RoundTimeouts
from .update_collection import RoundUpdates

# Number of slots of a round in which a record must name everything, plus one per possible byzantine
# member.
_WHOLE_SLOTS = 3
# Part of the slot's time for which the leader of a slot after the first waits for announced updates: the
# slot before may have been skipped because its leader lacked updates that others hold.
_FETCH_PATIENCE = 0.5
# Part of the time that a leader waits for updates after which an update is too late for the requirement.
_IN_TIME = 0.75

Completeness = Literal["complete", "incomplete", "unknown"]
"""A member's judgement of a proposed record; "unknown" while the member itself waits for updates."""


class ProposalReview:
    """One member's review of a round's fresh proposals, its own included."""

    def __init__(
        self,
        model: FaultModel,
        me: PeerId,
        membership: Membership,
        due: Set[PeerId],
        collection: RoundUpdates,
    ) -> None:
        """`due`: the members whose update is due; empty if the round has no training."""
        self.refused: set[int] = set()
        """Slots whose proposal is incomplete. The member skips them."""
        self._model: FaultModel = model
        self._me = me
        self._members = len(membership)
        self._due = due
        self._collection = collection
        # Time of each slot's proposal, and whether a record matches the announcements received here.
        self._proposed_at: dict[int, float] = {}
        self._as_announced: dict[RecordId, bool] = {}

    def note_proposal(self, slot: int, now: float) -> None:
        """Note the arrival of a slot's proposal."""
        self._proposed_at.setdefault(slot, now)

    def may_propose(self, slot: int, entered: float, timeouts: RoundTimeouts, now: float) -> bool:
        """Whether this member, which is ready and leads a slot since the time `entered`, need not wait
        any longer for updates that were announced."""
        if slot == 1 or not self._collection.awaited():
            return True
        return now >= entered + _FETCH_PATIENCE * timeouts.slot(slot)

    def is_complete(
        self,
        record: Record,
        slot: int,
        start: float,
        timeouts: RoundTimeouts,
        now: float,
        *,
        ready: bool,
    ) -> bool:
        """Whether a record is complete and matches the announcements received here.

        The record is valid, proposed for a slot and made from this member's parameters; the round began
        at `start`. If it can never become complete, the slot is added to `refused`.
        """
        if record.id not in self._as_announced:
            self._collection.take_in(record, now)
            self._as_announced[record.id] = not self._collection.contradicted_by(record)
        judged: Completeness = "incomplete"
        if record.slot == slot and self._as_announced[record.id]:
            judged = (
                "complete" if not self._due else self._judge(record, slot, start, timeouts, ready)
            )
        if judged == "incomplete":
            self.refused.add(slot)
        return judged == "complete"

    def _judge(
        self, record: Record, slot: int, start: float, timeouts: RoundTimeouts, ready: bool
    ) -> Completeness:
        return judge_completeness(
            record,
            slot,
            self._collection,
            me=self._me,
            members=self._members,
            due=self._due,
            model=self._model,
            start=start,
            collect=timeouts.collect,
            proposed=self._proposed_at.get(slot, start),
            ready=ready,
            pace_known=timeouts.round_seconds is not None,
        )


def judge_completeness(
    record: Record,
    slot: int,
    collection: RoundUpdates,
    *,
    me: PeerId,
    members: int,
    due: Set[PeerId],
    model: FaultModel,
    start: float,
    collect: float,
    proposed: float,
    ready: bool,
    pace_known: bool,
) -> Completeness:
    """Judge a fresh record that was proposed for a slot at the time `proposed`.

    The round began at `start`, and a leader waits `collect` seconds for its updates. `ready` says
    whether this member has stopped waiting for updates; until then it cannot judge. `pace_known` says
    whether `collect` was derived from observed rounds: a member that was just started waits much longer
    than the others, so it accepts a record that names most of the members whose update is `due`.
    """
    until = max(proposed - (1 - _IN_TIME) * collect, start + _IN_TIME * collect)
    missed = collection.missed_by(record, until) - {me}
    if missed and slot > (whole := _WHOLE_SLOTS + max_byzantine_votes(model, members)):
        named = len(collection.held_by(until)) - len(missed)
        enough = 3 * named >= 2 * (named + len(missed))
        if enough or slot > whole + members:
            missed = set()
    if missed:
        return "incomplete"
    most = 2 * sum(entry.peer in due for entry in record.updates) > len(due)
    return "complete" if ready or (most and not pace_known) else "unknown"
