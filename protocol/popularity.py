"""How likely each frequency of a strip is, learnt from the blocks that were coded before.

A gradient is close to a sum of a few outer products. The transform of such a block is again an
outer product, of one vector that its row of blocks shares and one that its column of blocks shares:
what is strong in a block is strong in its neighbours. So a coefficient at (r, c) is taken to be as
likely as r was in its row of blocks, times c in its column of blocks. Whole numbers only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .lanes import PRECISION, Integers
from .waves import Plan, Wave

# A frequency weighs 1 + 4 · (how often it was seen): 64 frequencies begin as if each had been seen
# a quarter of a time. Half and twice as much cost 0.02 and 0.08 bits more (docs/codec.md).
_SEEN_SHIFT = 2

# The weights of a strip add up to 2^16 at most, or an interval could be empty.
_MOST_SEEN = (1 << PRECISION) - 64


class Popularity:
    """Counts for every line of a plan, and the intervals that follow from them.

    Unless `adaptive`, nothing is counted and all frequencies stay equally likely.
    """

    def __init__(self, plan: Plan, *, adaptive: bool) -> None:
        self._plan = plan
        self._adaptive = adaptive
        self._seen = np.zeros(plan.line_count, dtype=np.int64)
        self._below = np.zeros(1, dtype=np.int64)
        self._owners = np.zeros(0, dtype=np.uint8)

    def learn(self, lines: Integers) -> None:
        """Count the coefficients at these lines."""
        if self._adaptive:
            self._seen += np.bincount(lines, minlength=len(self._seen))

    def unlearn(self, lines: Integers) -> None:
        """Undo `learn`."""
        if self._adaptive:
            self._seen -= np.bincount(lines, minlength=len(self._seen))

    def prepare(self, wave: Wave, *, search: bool) -> None:
        """Take the counts as they are now; `search` if `find` will be called."""
        weights = self._weights(wave.lines)
        self._below = np.concatenate([[0], np.cumsum(weights)])
        if search:
            self._owners = np.repeat(self._plan.frequencies[: wave.lines], weights)

    def strips(
        self, first_lines: npt.NDArray[np.int32], sides: npt.NDArray[np.uint8]
    ) -> tuple[Integers, Integers]:
        """Of each strip, by its first line and its width: the weight below it, and its own."""
        base = self._below[first_lines]
        return base, self._below[first_lines + sides] - base

    def intervals(
        self, lines: Integers, base: Integers, total: Integers
    ) -> tuple[Integers, Integers]:
        """Start and width of the interval of each line within [0, 2^16) of its strip."""
        # Rounding up makes `find` exact: slot ≥ ⌈w · 2^16 / total⌉ where slot · total ≥ w · 2^16.
        most = total - 1
        start = ((self._below[lines] - base << PRECISION) + most) // total
        end = ((self._below[lines + 1] - base << PRECISION) + most) // total
        return start, end - start

    def find(self, slots: Integers, base: Integers, total: Integers) -> npt.NDArray[np.uint8]:
        """The frequencies whose intervals hold the slots."""
        return self._owners[base + (slots * total >> PRECISION)]

    def _weights(self, lines: int) -> npt.NDArray[np.int64]:
        seen = self._seen[:lines] << _SEEN_SHIFT
        if self._adaptive and self._plan.most_seen << _SEEN_SHIFT > _MOST_SEEN:
            widths = self._plan.strip_widths
            ends = np.cumsum(widths, dtype=np.int64)
            widths = widths[ends <= lines]
            totals = np.add.reduceat(seen, ends[ends <= lines] - widths)
            shift = np.zeros_like(totals)
            while (too_much := totals >> shift > _MOST_SEEN).any():
                shift += too_much
            seen >>= np.repeat(shift, widths)
        return seen + 1
