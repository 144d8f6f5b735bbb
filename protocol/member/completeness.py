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
from ..wire.membership import FaultModel, most_liars
from ..wire.messages import Record
from .collection import Collection

# In so many slots of a round a record has to name everything, and in one more for each possible liar.
_WHOLE_SLOTS = 3
# What is held later, as a part of the time that a leader waits for updates, it need not have.
_IN_TIME = 0.75

Completeness = Literal["complete", "incomplete", "unknown"]
"""Of a proposed record, as a member sees it; "unknown" while it waits for updates itself."""


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
