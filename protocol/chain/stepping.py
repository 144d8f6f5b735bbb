"""What it takes to make the step of a record: which bodies, and how often each counts."""

from __future__ import annotations

from dataclasses import dataclass

from ..codec.tally import place_of
from ..wire.messages import Record, UpdateEntry
from .ledger import Ledger
from .speaking import Place


@dataclass(frozen=True, slots=True)
class Needed:
    """One body that it takes."""

    entry: UpdateEntry
    count: int
    """How often it counts in the step; 0 is not at all."""
    place: Place | None = None
    """Where panels speak: for which section it has to be, and how many there are."""

    def fits(self, body: bytes) -> bool:
        """Whether this body, which decodes, may take part: a panel speaks for its own section alone."""
        return self.place is None or place_of(body) == self.place


def needed_for(ledger: Ledger, record: Record) -> tuple[Needed, ...]:
    """The bodies for the step of a record, in its order: without speakers all of its updates, else one
    for each tally that counts. The record must have been checked, and is the next one at most."""
    counts = ledger.counts(record)
    entries = zip(record.updates, counts, strict=True)
    if ledger.speaking is None:
        return tuple(Needed(entry, count) for entry, count in entries)
    places = ledger.speaking.places(record)
    return tuple(Needed(entry, 1, places[entry.peer]) for entry, count in entries if count)
