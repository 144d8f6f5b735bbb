"""Inputs of a record's step: the update bodies and their weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...crypto.identity import PeerId
from ..codec.aggregate import place_of
from ..wire.messages import Record, UpdateEntry
from .chain_index import ChainView
from .committees import CommitteeChain, Place


@dataclass(frozen=True, slots=True)
class StepBody:
    """One update body that the step needs."""

    entry: UpdateEntry
    update_weight: int
    """Its weight in the step; a body of weight 0 is not applied."""
    place: Place | None = None
    """With committees, the section that it must be for, and the number of sections."""

    def fits(self, body: bytes) -> bool:
        """Whether `body`, which is valid in itself, may take part in the step: with committees it must
        be for the section of its author's committee."""
        return self.place is None or place_of(body) == self.place


def needed_authors(chain: ChainView, record: Record) -> Mapping[PeerId, Place | None]:
    """Return the authors of the updates that the step of a record needs, each with the place of its
    update: all authors without a place, or with committees those of one announcement for each aggregate
    that counts. The record must have been checked, and is the next one at most."""
    committees = chain.find(CommitteeChain)
    if committees is None:
        return dict.fromkeys(entry.peer for entry in record.updates)
    return committees.places(record)


def needed_for(chain: ChainView, record: Record) -> tuple[StepBody, ...]:
    """Return the bodies for the step of a record, in its order. The record must have been checked, and
    is the next one at most."""
    places = needed_authors(chain, record)
    weighted = zip(record.updates, chain.update_weights(record), strict=True)
    return tuple(
        StepBody(entry, update_weight, places[entry.peer])
        for entry, update_weight in weighted
        if entry.peer in places
    )
