"""Inputs of a record's step: the update bodies and their weights."""

from __future__ import annotations

from dataclasses import dataclass

from ..codec.aggregate import place_of
from ..wire.messages import Record, UpdateEntry
from .committees import Place
from .ledger import Ledger


@dataclass(frozen=True, slots=True)
class StepBody:
    """One update body that the step needs."""

    entry: UpdateEntry
    count: int
    """Its weight in the step; a body of weight 0 is not applied."""
    place: Place | None = None
    """With committees, the section that it must be for, and the number of sections."""

    def fits(self, body: bytes) -> bool:
        """Whether `body`, which is valid in itself, may take part in the step: with committees it must
        be for the section of its author's committee."""
        return self.place is None or place_of(body) == self.place


def needed_for(ledger: Ledger, record: Record) -> tuple[StepBody, ...]:
    """Return the bodies for the step of a record, in its order: without committees all of its updates,
    otherwise one for each aggregate that counts. The record must have been checked, and is the next one
    at most."""
    counts = ledger.counts(record)
    entries = zip(record.updates, counts, strict=True)
    if ledger.committee_chain is None:
        return tuple(StepBody(entry, count) for entry, count in entries)
    places = ledger.committee_chain.places(record)
    return tuple(StepBody(entry, 1, places[entry.peer]) for entry, count in entries if count)
