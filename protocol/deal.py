"""Which positions of the sample stream a round deals out, so that each is trained once whoever fails.

A round deals what earlier rounds left untrained, and then fresh positions. What it leaves untrained
itself is known to everybody from its record: the shares of the members in force whose update does not
count. So the state follows from the chain alone, and nothing is lost at the end of an epoch: what is
left over is dealt next, while the stream goes on into the next epoch.

A round deals all that is left over before anything fresh, so never more can be left over than one
round deals: that bounds the state.

With `overlap` a round's update is computed while the round before is decided, so what it deals, and to
whom, may depend on nothing later than the record before that one: the positions are those that are due
then, the members those of the round before. What a round leaves untrained is therefore dealt again two
rounds later, and who is admitted has a share from its second round on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .assignment import cut, places
from .membership import Membership
from .messages import Record


@dataclass(frozen=True)
class Deal:
    """Where the stream stands before a round. Positions count from 0, epoch after epoch."""

    cursor: int = 0
    """The first position that was never dealt."""
    backlog: tuple[range, ...] = ()
    """Positions dealt and not trained: sorted, disjoint, not adjacent; at most a round's worth."""

    def positions(self, sequences: int) -> tuple[range, ...]:
        """The `sequences` positions that the round deals, what is left over first."""
        fresh = range(self.cursor, self.cursor + sequences - sum(map(len, self.backlog)))
        return (*self.backlog, fresh) if fresh else self.backlog

    def after(self, record: Record, membership: Membership, sequences: int) -> Deal:
        """The state after `record`, which `membership` decided. Round 0 deals nothing."""
        if record.round == 0:
            return self
        dealt = self.positions(sequences)
        cursor = max(self.cursor, dealt[-1].stop)
        return Deal(cursor, _untrained(record, dealt, membership))

    def after_ahead(
        self, record: Record, dealt: Sequence[range], members: Membership, sequences: int
    ) -> Deal:
        """The same with `overlap`: the record's round dealt these positions to these `members`, and
        what is due here has been dealt meanwhile, for the round after it."""
        cursor = max(self.cursor, self.positions(sequences)[-1].stop)
        return Deal(cursor, _untrained(record, dealt, members) if record.round > 0 else ())


def _untrained(record: Record, dealt: Sequence[range], members: Membership) -> tuple[range, ...]:
    """What is left of these positions: the shares of those `members` whose update does not count."""
    counted = {entry.peer for entry in record.updates}
    count = sum(map(len, dealt))
    missed = sorted(
        (
            places(count, len(members), index, record.round)
            for index, peer in enumerate(members.peers)
            if peer not in counted
        ),
        key=lambda run: run.start,
    )
    return _joined(piece for run in _joined(missed) for piece in cut(dealt, run))


def _joined(ranges: Iterable[range]) -> tuple[range, ...]:
    """Sorted, disjoint ranges with adjacent ones made one and empty ones left out."""
    joined: list[range] = []
    for each in ranges:
        if joined and each and joined[-1].stop == each.start:
            joined[-1] = range(joined[-1].start, each.stop)
        elif each:
            joined.append(each)
    return tuple(joined)
