"""Events of a decided record, as notes for people and metrics."""

from __future__ import annotations

from ...crypto.identity import PeerId
from ..chain.versions import VersionChange
from ..wire.messages import Record
from .effects import Note


def notes_of(record: Record, me: PeerId) -> list[Note]:
    """Return the events of a record: that it is decided, who was admitted, and who departed or was
    expelled."""
    notes = [Note("decided", record.round)]
    notes += [Note("admitted", record.round, entry.peer) for entry in record.admitted]
    for departure in record.departed:
        presumed_gone = departure.peer == me and departure.reason == "silent"
        kind = "presumed_gone" if presumed_gone else departure.reason
        notes.append(Note(kind, record.round, departure.peer))
    return notes + [Note("expelled", record.round, entry.peer) for entry in record.evidence]


def notes_of_change(before: VersionChange | None, now: VersionChange | None) -> list[Note]:
    """Return the event of a scheduled version change, if there is one."""
    if now is None or now == before:
        return []
    return [Note("version", now.round, None, str(now.version))]
