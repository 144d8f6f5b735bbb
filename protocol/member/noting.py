"""What of a record people and metrics want to know."""

from __future__ import annotations

from ...crypto.identity import PeerId
from ..chain.versions import Change
from ..wire.messages import Record
from .effects import Note


def notes_of(record: Record, me: PeerId) -> list[Note]:
    """Who came, who went, and why."""
    notes = [Note("decided", record.round)]
    notes += [Note("admitted", record.round, entry.peer) for entry in record.admitted]
    for departure in record.departed:
        counted_out = departure.peer == me and departure.reason == "silent"
        kind = "counted_out" if counted_out else departure.reason
        notes.append(Note(kind, record.round, departure.peer))
    return notes + [Note("expelled", record.round, entry.peer) for entry in record.evidence]


def notes_of_change(before: Change | None, now: Change | None) -> list[Note]:
    """That a change of version was scheduled, if it was."""
    if now is None or now == before:
        return []
    return [Note("version", now.round, None, str(now.version))]
