"""Records that leave tallies out, and who votes for none of them.

A leader that leaves updates out costs the swarm what those would have brought in a step. Where panels
speak for the others, more hangs on it: of a panel whose honest members are left out, two liars speak
for all, and one that is left out as a whole begins anew with nothing heard. So members vote for a record
only if it names every tally that they had in time: an honest leader had it too.

Not for ever, or a swarm whose members hear different things would stop. Whoever keeps its own tally from
a leader alone wastes a slot of that round, and no more than `_WHOLE_SLOTS` of them are to be had.
"""

from __future__ import annotations

from ..wire.messages import Record
from .collection import Collection

# In so many slots of a round a record has to name all tallies.
_WHOLE_SLOTS = 3
# What comes later, as a part of the time that a leader waits, it need not have had.
_IN_TIME = 0.75


def hides_tallies(
    record: Record,
    slot: int,
    collection: Collection,
    *,
    start: float,
    collect: float,
    is_ready: bool,
) -> bool:
    """Whether a fresh record, proposed in a slot, lacks a tally that an honest leader has: one that was
    held in time, in a round that begins at `start` and waits for `collect` seconds. A member that is not
    ready, since it still waits for tallies itself, cannot tell, and takes it so."""
    if slot > _WHOLE_SLOTS:
        return False
    return not is_ready or bool(collection.missed_by(record, start + _IN_TIME * collect))
