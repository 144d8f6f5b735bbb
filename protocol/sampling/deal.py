"""Which sample of each lane a round deals out, so that each is trained once whoever fails.

A round deals one sample of every lane: the next one, or one that was dealt before and left untrained.
Everybody knows from a round's record what it leaves untrained: the lanes of those whose update was due
and does not count. So the state follows from the chain alone. A lane whose sample was lost stays a
row behind the others, into the next epoch and on. Nothing has to be made up for, and the member that has
the lane next has its piece of the corpus at hand, or needs it anyway.

A lane that was dealt to somebody with several rounds' time goes on with its next sample meanwhile. If
the update does not count when it is due, the lane owes its sample, and gives it as soon as it can.

With `overlap` a round's update is computed while the round before is decided, so its deal may depend on
nothing later than the record before that one. Samples left untrained are therefore dealt again two
rounds later, and a new member has a share from its second round on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from .sampler import Lanes

# A lane is a row behind for each round in which its sample was lost: some four billion rounds.
_PACKED = "<u4"


@dataclass(frozen=True)
class Deal:
    """What one round, from 1 on, deals: for each lane, how far behind the rounds its sample is.

    A lane that never lost a sample is at row r - 1 in round r. The numbers are packed, and nothing at
    all while no lane is behind: there is one of these for each round.
    """

    round: int
    behind: bytes = b""
    """How many rows before r - 1 the sample is that each lane gives."""
    waiting: bytes = b""
    """How many rows before r the first sample is that was never dealt, this round's among the dealt."""
    owed: tuple[tuple[int, int], ...] = ()
    """Lanes and rows of samples dealt in earlier rounds, left untrained, and not dealt again yet."""

    def rows(self, lanes: int) -> Lanes:
        """Which of its samples each of the `lanes` gives: int64 (lanes,)."""
        return self.round - 1 - _unpack(self.behind, lanes)

    def fresh(self, lanes: int) -> Lanes:
        """The first row of each lane that neither this round nor one before it deals: int64 (lanes,)."""
        return self.round - _unpack(self.waiting, lanes)

    def then(
        self,
        decided: Deal,
        lost: Iterable[range],
        lanes: int,
        owed: Iterable[tuple[int, int]] = (),
    ) -> Deal:
        """What the next round deals, when the record of `decided`, this round or with `overlap` the one
        before it, has left the sample of the `lost` lanes untrained, and those of the `owed` lanes and
        rows, which were dealt earlier."""
        again = np.zeros(lanes, bool)
        for run in lost:
            again[run.start : run.stop] = True
        next_round, fresh = self.round + 1, self.fresh(lanes)
        rows = np.where(again, decided.rows(lanes), fresh)
        still: list[tuple[int, int]] = []
        for lane, row in sorted([*self.owed, *owed]):
            if again[lane]:
                still.append((lane, row))
            else:
                rows[lane], again[lane] = row, True
        behind = _pack(next_round - 1 - rows)
        waiting = _pack(next_round - np.where(again, fresh, fresh + 1))
        # Most rounds lose nothing, and their state is that of the round before.
        known = {behind: behind, self.waiting: self.waiting, self.behind: self.behind}
        return Deal(next_round, known[behind], known.get(waiting, waiting), tuple(still))


def _unpack(packed: bytes, lanes: int) -> Lanes:
    return np.frombuffer(packed, _PACKED).astype(np.int64) if packed else np.zeros(lanes, np.int64)


def _pack(rows: Lanes) -> bytes:
    return rows.astype(_PACKED).tobytes() if rows.any() else b""
