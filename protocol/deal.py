"""Which positions of the sample stream a round deals out, so that each is trained once whoever fails.

A round deals what earlier rounds left untrained, and then fresh positions. What it leaves untrained
itself is known to everybody from its record: the shares of the members in force whose update does not
count. So the state follows from the chain alone, and nothing is lost at the end of an epoch: what is
left over is dealt next, while the stream goes on into the next epoch.

A round deals all that is left over before anything fresh, so never more can be left over than one
round deals: that bounds the state.
"""

from __future__ import annotations

from collections.abc import Iterable
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
        counted = {entry.peer for entry in record.updates}
        if len(counted) == len(membership):
            return Deal(cursor)
        missed = sorted(
            (
                places(sequences, len(membership), index, record.round)
                for index, peer in enumerate(membership.peers)
                if peer not in counted
            ),
            key=lambda run: run.start,
        )
        left = [piece for run in _joined(missed) for piece in cut(dealt, run)]
        return Deal(cursor, _joined(left))


def _joined(ranges: Iterable[range]) -> tuple[range, ...]:
    """Sorted, disjoint ranges with adjacent ones made one and empty ones left out."""
    joined: list[range] = []
    for each in ranges:
        if joined and each and joined[-1].stop == each.start:
            joined[-1] = range(joined[-1].start, each.stop)
        elif each:
            joined.append(each)
    return tuple(joined)
