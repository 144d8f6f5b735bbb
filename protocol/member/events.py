"""Events of a decided record, as notes for people and metrics."""

from __future__ import annotations

from ...crypto.identity import PeerId
from ..audit.reputation_events import ReputationEvent
from ..chain.versions import VersionChange
from ..wire.messages import Record
from .effects import Note

# Maximum number of members named when votes change. An epoch may give votes to a thousand at once.
_NAMED = 4


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


def notes_of_changes(
    found: list[ReputationEvent], voters: int, round: int, me: PeerId
) -> list[Note]:
    """Return the events to show: all about this node, and those about others that have consequences.

    `voters`: number of members with votes now.
    """
    notes: list[Note] = []
    votes: list[Note] = []
    for change in found:
        note = Note(change.kind, round, change.peer, change.detail)
        if change.peer == me:
            notes.append(note)
        elif change.kind in ("votes_gained", "votes_lost"):
            votes.append(note)
        elif change.kind != "audit_low":
            # A low audit alone accuses no member.
            notes.append(note)
    if len(votes) > _NAMED:
        votes = [Note("voters", round, None, str(voters))]
    return notes + votes
