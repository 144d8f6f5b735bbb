"""Stream cursors: which sample of each stream a round assigns, so that each is trained exactly once.

A round assigns one sample of every stream: the next one, or one that was assigned before and left
untrained. A round's record shows what it leaves untrained: the streams of members whose update was due
and does not count. So the cursors follow from the chain alone. A stream whose sample was lost stays one
row behind the others, into the next epoch of the corpus and beyond. It never has to catch up, and the
member that has the stream next has that part of the corpus on disk, or needs it anyway.

While a stream's sample is lent for several rounds, the stream continues with its next samples. If the
update does not count when it is due, the stream *owes* the lent sample and assigns it as soon as it can.

With `overlap` a round's update is computed while the round before is decided, so its cursors may depend
on nothing later than the record before that one. Samples left untrained are therefore assigned again
two rounds later, and a new member has a share from its second round on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from .sampler import Streams

# Unsigned 32-bit: a stream is one row behind for each round in which its sample was lost, so this
# suffices for four billion rounds.
_PACKED = "<u4"


@dataclass(frozen=True)
class StreamCursors:
    """Stream cursors of one round, from 1 on: for each stream, how far its sample is behind the rounds.

    A stream that never lost a sample is at row r - 1 in round r. To save memory, as there is one of
    these objects for each round, the offsets are packed, and empty while no stream is behind.
    """

    round: int
    behind: bytes = b""
    """For each stream, how many rows before r - 1 its sample of this round r is."""
    waiting: bytes = b""
    """For each stream, how many rows before r its first unassigned sample is; this round's sample counts
    as assigned."""
    owed: tuple[tuple[int, int], ...] = ()
    """Streams and rows of samples assigned in earlier rounds, left untrained, and not assigned again
    yet."""

    def rows(self, streams: int) -> Streams:
        """Return the row of each stream's sample: int64 (streams,)."""
        return self.round - 1 - _unpack(self.behind, streams)

    def fresh(self, streams: int) -> Streams:
        """Return the first row of each stream that neither this round nor one before it assigns: int64
        (streams,)."""
        return self.round - _unpack(self.waiting, streams)

    def next_cursors(
        self,
        decided: StreamCursors,
        lost: Iterable[range],
        streams: int,
        owed: Iterable[tuple[int, int]] = (),
    ) -> StreamCursors:
        """Return the cursors of the next round, once the record of `decided` is known: this round or,
        with `overlap`, the one before it. That record leaves untrained the samples of the `lost` streams
        in its own round, and the samples given by `owed` (stream and row), which were assigned
        earlier."""
        again = np.zeros(streams, bool)
        for run in lost:
            again[run.start : run.stop] = True
        next_round, fresh = self.round + 1, self.fresh(streams)
        rows = np.where(again, decided.rows(streams), fresh)
        still: list[tuple[int, int]] = []
        for stream, row in sorted([*self.owed, *owed]):
            if again[stream]:
                still.append((stream, row))
            else:
                rows[stream], again[stream] = row, True
        behind = _pack(next_round - 1 - rows)
        waiting = _pack(next_round - np.where(again, fresh, fresh + 1))
        # Most rounds lose nothing and share the packed offsets of the round before.
        known = {behind: behind, self.waiting: self.waiting, self.behind: self.behind}
        return StreamCursors(next_round, known[behind], known.get(waiting, waiting), tuple(still))


def _unpack(packed: bytes, streams: int) -> Streams:
    return (
        np.frombuffer(packed, _PACKED).astype(np.int64) if packed else np.zeros(streams, np.int64)
    )


def _pack(rows: Streams) -> bytes:
    return rows.astype(_PACKED).tobytes() if rows.any() else b""
