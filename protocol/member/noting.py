"""What of a record people and metrics want to know."""

from __future__ import annotations

from ...crypto.identity import PeerId
from ..chain.checked import CheckedWork
from ..chain.versions import Change as VersionChange
from ..checks.changes import Change, Picture, changes, picture
from ..wire.messages import Record
from .effects import Note

# So many members are named when votes change. A term may give votes to a thousand at once.
_NAMED = 4


def notes_of(record: Record, me: PeerId) -> list[Note]:
    """Who came, who went, and why."""
    notes = [Note("decided", record.round)]
    notes += [Note("admitted", record.round, entry.peer) for entry in record.admitted]
    for departure in record.departed:
        counted_out = departure.peer == me and departure.reason == "silent"
        kind = "counted_out" if counted_out else departure.reason
        notes.append(Note(kind, record.round, departure.peer))
    return notes + [Note("expelled", record.round, entry.peer) for entry in record.evidence]


def notes_of_change(before: VersionChange | None, now: VersionChange | None) -> list[Note]:
    """That a change of version was scheduled, if it was."""
    if now is None or now == before:
        return []
    return [Note("version", now.round, None, str(now.version))]


def picture_of(work: CheckedWork | None) -> Picture | None:
    """How everybody stands, before a record; None where work is not checked."""
    return None if work is None else picture(work.accounts)


def notes_of_work(
    before: Picture | None, work: CheckedWork | None, round: int, me: PeerId
) -> list[Note]:
    """What the record of `round` has changed in how members stand, since `before`."""
    if before is None or work is None:
        return []
    found = changes(before, work.accounts, round)
    return notes_of_changes(found, len(work.accounts.votes), round, me)


def notes_of_changes(found: list[Change], voters: int, round: int, me: PeerId) -> list[Note]:
    """What people hear of these: all that is about this node, of others what has consequences.

    `voters`: how many members have votes now.
    """
    notes: list[Note] = []
    votes: list[Note] = []
    for change in found:
        note = Note(change.kind, round, change.peer, change.detail)
        if change.peer == me:
            notes.append(note)
        elif change.kind in ("votes_gained", "votes_lost"):
            votes.append(note)
        elif change.kind != "check_low":
            # A low look alone accuses nobody.
            notes.append(note)
    if len(votes) > _NAMED:
        votes = [Note("voters", round, None, str(voters))]
    return notes + votes
