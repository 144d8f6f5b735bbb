"""Sizes of a chain's updates, by which nodes estimate what replaying its rounds would cost."""

from __future__ import annotations

from collections.abc import Sequence

from ..wire.messages import Record
from ..wire.saved_state import Restorable, fields, numbers
from .chain_index import ChainView, StepSource


class UpdateBytes(Restorable):
    """Approximate bytes of the updates that are needed to apply each round."""

    STATE = fields(_totals=numbers(1))

    def __init__(self, chain: ChainView, totals: Sequence[int] = (0,)) -> None:
        self._chain = chain
        # Of all rounds before each round.
        self._totals = list(totals)

    def between(self, first: int, end: int) -> int:
        """Return the approximate size in bytes of the updates that are needed for the rounds from
        `first` to `end` - 1.

        All updates of a swarm have about the same size. So each is counted with the lower median of the
        sizes in its round, which a few members cannot change by stating wrong sizes for their updates.
        """
        return self._totals[end] - self._totals[first]

    def follow(self, record: Record) -> None:
        self._totals.append(self._totals[-1] + self._estimate(record))

    def before(self, length: int, chain: ChainView) -> UpdateBytes:
        return UpdateBytes(chain, self._totals[: length + 1])

    def _estimate(self, record: Record) -> int:
        needed = self._chain.index(StepSource).needed(record)
        sizes = sorted(entry.size for entry in record.updates if entry.peer in needed)
        # An update larger than a snapshot is never worth fetching: the snapshot is the shorter way.
        most = 8 * self._chain.manifest.elements
        return len(sizes) * min(sizes[(len(sizes) - 1) // 2], most) if sizes else 0
