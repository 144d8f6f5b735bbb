"""Complete records: whether a leader names all the updates that an honest one has.

The step of a round is what its record names. A leader that names its own update alone makes the step
alone, and all the others' shares shrink as if they had been late; where panels speak for the others, two
liars whose honest colleagues are left out speak for all. So a member votes for a fresh record only if it
names every update, or tally, that the member held *in good time*: long enough before the proposal for an
honest leader to have fetched it from any holder. A leader waits until it holds what is due, or until its
collect deadline is over; so what was held before three quarters of that time, an honest one has, however
early it proposes, and what was held a quarter of that time before the proposal, it has as well.

The own update is not asked for: nobody knows whether others can fetch it already. A leader that leaves
out one member has all others against it.

An honest leader may lack what a liar gave to some alone. It fetches that from those who hold it, and a
slot is lost at most. The demand is not dropped while liars may have led all slots that have passed: it
holds in the first `_WHOLE_SLOTS` slots, and in one more for each member that may lie. In later slots two
thirds of what was held will do, and once everybody has led a slot since, anything: or a swarm whose
members cannot fetch each other's updates would stop.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Literal

from ...crypto.identity import PeerId
from ..wire.membership import FaultModel, Membership, most_liars
from ..wire.messages import Record, RecordId
from .collection import Collection
from .pacing import Pacing

# In so many slots of a round a record has to name everything, and in one more for each possible liar.
_WHOLE_SLOTS = 3
# A leader of a later slot waits so long, as a part of the slot, for updates that it knows of: a leader
# that lacked what others hold may be why the slot before was skipped.
_FETCH_PATIENCE = 0.5
# What is held later, as a part of the time that a leader waits for updates, it need not have.
_IN_TIME = 0.75

Completeness = Literal["complete", "incomplete", "unknown"]
"""Of a proposed record, as a member sees it; "unknown" while it waits for updates itself."""


class ProposalReview:
    """One member's review of the fresh proposals of a round, its own and those of others."""

    def __init__(
        self,
        model: FaultModel,
        me: PeerId,
        membership: Membership,
        due: Set[PeerId],
        collection: Collection,
    ) -> None:
        """`due`: the members of which an update is due; none where nobody trains."""
        self.refused: set[int] = set()
        """The slots whose proposal is incomplete. They are as good as skipped."""
        self._model: FaultModel = model
        self._me = me
        self._members = len(membership)
        self._due = due
        self._collection = collection
        # When each slot's proposal came, and whether a record names what was announced here.
        self._came: dict[int, float] = {}
        self._as_announced: dict[RecordId, bool] = {}

    def came(self, slot: int, now: float) -> None:
        """A proposal for a slot is here."""
        self._came.setdefault(slot, now)

    def may_propose(self, slot: int, entered: float, pacing: Pacing, now: float) -> bool:
        """Whether this member, which leads a slot that it `entered` and is ready, waits no longer for
        updates that are on their way."""
        if slot == 1 or not self._collection.awaited():
            return True
        return now >= entered + _FETCH_PATIENCE * pacing.slot(slot)

    def is_complete(
        self, record: Record, slot: int, start: float, pacing: Pacing, now: float, *, ready: bool
    ) -> bool:
        """Whether a record, proposed for a slot, valid and from this member's parameters, names what it
        should, as it was announced, in a round that began at `start`. If it never will, the slot is
        `refused`."""
        if record.id not in self._as_announced:
            self._collection.take_in(record, now)
            self._as_announced[record.id] = not self._collection.contradicted_by(record)
        judged: Completeness = "incomplete"
        if record.slot == slot and self._as_announced[record.id]:
            judged = (
                "complete" if not self._due else self._judge(record, slot, start, pacing, ready)
            )
        if judged == "incomplete":
            self.refused.add(slot)
        return judged == "complete"

    def _judge(
        self, record: Record, slot: int, start: float, pacing: Pacing, ready: bool
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
            collect=pacing.collect,
            proposed=self._came.get(slot, start),
            ready=ready,
            knows_pace=pacing.round_seconds is not None,
        )


def judge_completeness(
    record: Record,
    slot: int,
    collection: Collection,
    *,
    me: PeerId,
    members: int,
    due: Set[PeerId],
    model: FaultModel,
    start: float,
    collect: float,
    proposed: float,
    ready: bool,
    knows_pace: bool,
) -> Completeness:
    """Judge a fresh record that came as the proposal of a slot at the time `proposed`, in a round that
    began at `start`, for whose updates a leader waits `collect` seconds.

    `ready` says whether this member waits for no more updates; one that does cannot tell yet.
    `knows_pace` says whether `collect` is what was observed: a member that was just started waits much
    longer than the others, so it follows them where a record names most of what is `due`.
    """
    until = max(proposed - (1 - _IN_TIME) * collect, start + _IN_TIME * collect)
    missed = collection.missed_by(record, until) - {me}
    if missed and slot > (whole := _WHOLE_SLOTS + most_liars(model, members)):
        named = len(collection.held_by(until)) - len(missed)
        enough = 3 * named >= 2 * (named + len(missed))
        if enough or slot > whole + members:
            missed = set()
    if missed:
        return "incomplete"
    most = 2 * sum(entry.peer in due for entry in record.updates) > len(due)
    return "complete" if ready or (most and not knows_pace) else "unknown"
