"""How likely each frequency of a strip is, learnt from the blocks that were coded before.

A gradient is close to a sum of a few outer products. The transform of such a block is again an
outer product, of one vector that its row of blocks shares and one that its column of blocks shares:
what is strong in a block is strong in its neighbours. So a coefficient at (r, c) is taken to be as
likely as r was in its row of blocks, times c in its column of blocks. Whole numbers only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..wire.errors import ProtocolError
from .coding_plan import Lines, Plan, Sides
from .rans import LAST_SLOT, PRECISION, Units

# A frequency weighs 1 + 4 · (how often it was seen): 64 frequencies begin as if each had been seen
# a quarter of a time. Half as much is no better, twice as much costs 0.17 bits a coefficient.
_SEEN_SHIFT = np.uint32(2)

# With its 64 ones the weight of a strip stays below 2^16: no interval is empty, and the numbers
# below fit 32 bits.
_MOST_SEEN = (1 << PRECISION) - 1 - 64

_LARGEST = np.uint32((1 << 2 * PRECISION) - 1)
_SHIFT = np.uint32(PRECISION)


class Popularity:
    """Counts for every line of a plan, and the intervals that follow from them.

    Unless `adaptive`, nothing is counted and all frequencies stay equally likely.
    """

    def __init__(self, plan: Plan, *, adaptive: bool) -> None:
        self._plan = plan
        self._adaptive = adaptive
        self._seen = np.zeros(plan.line_count, dtype=np.uint32)
        self._below = np.zeros(plan.line_count + 1, dtype=np.uint32)
        self._owners = np.zeros(0, dtype=np.uint8)
        """The frequency that each unit of weight belongs to, strip after strip."""

    def learn(self, lines: Lines) -> None:
        """Count the coefficients at these lines."""
        if self._adaptive:
            np.add.at(self._seen, lines, np.uint32(1))

    def unlearn(self, lines: Lines) -> None:
        """Undo `learn`."""
        if self._adaptive:
            np.subtract.at(self._seen, lines, np.uint32(1))

    def prepare(self, *, search: bool) -> None:
        """Take the counts as they are now; `search` if `find` will be called."""
        weights = self._weights()
        np.cumsum(weights, out=self._below[1:])
        if search:
            self._owners = np.repeat(self._plan.frequencies, weights)

    def strips(self, first: Lines, sides: Sides) -> tuple[Units, Units]:
        """Of strips, by their first lines and widths: the weight before them, and their rates.

        The rate is ⌊(2^32 - 1) / weight of the strip⌋: 2^-16 units of the interval a weight of one.
        """
        base = self._below.take(first)
        return base, _LARGEST // (self._below.take(first + sides) - base)

    def intervals(self, lines: Lines, base: Units, rate: Units) -> tuple[Units, Units]:
        """Start and width of the interval of each line within [0, 2^16 - 1) of its strip."""
        start = (self._below.take(lines) - base) * rate >> _SHIFT
        end = (self._below[1:].take(lines) - base) * rate >> _SHIFT
        return start, end - start

    def find(self, slots: Units, base: Units, rate: Units) -> Sides:
        """The frequencies whose intervals hold the slots.

        Raises `ProtocolError` (`malformed`) for the last slot, which is nobody's: with a weight
        below 2^16 it is the only one that rounding leaves over.
        """
        if (slots == LAST_SLOT).any():
            raise ProtocolError("malformed", "a slot that belongs to no frequency")
        # w · rate >> 16 ≤ slot where w · rate < (slot + 1) · 2^16.
        return self._owners.take(base + (slots << _SHIFT | np.uint32(LAST_SLOT)) // rate)

    def _weights(self) -> npt.NDArray[np.uint32]:
        seen = self._seen << _SEEN_SHIFT
        if self._adaptive and self._plan.most_seen > _MOST_SEEN >> int(_SEEN_SHIFT):
            widths = self._plan.strip_widths
            starts = np.cumsum(widths, dtype=np.int64) - widths
            totals = np.add.reduceat(seen, starts, dtype=np.uint64)
            shift = np.zeros(len(totals), dtype=np.uint32)
            while (too_much := totals >> shift > _MOST_SEEN).any():
                shift += too_much
            seen >>= np.repeat(shift, widths)
        return seen + np.uint32(1)
