"""Attendance of a decided round: what became of this node's update, and whose updates were late."""

from __future__ import annotations

from ...crypto.identity import PeerId
from ...protocol.chain.ledger import Ledger
from ...protocol.wire.messages import Record
from ..telemetry.own_rounds import RoundAttendance


def attendance_of(ledger: Ledger, record: Record, me: PeerId) -> RoundAttendance:
    """Return what became of the update of `me` in the round of a checked `record` of this ledger, and
    which members' updates were late."""
    named = {entry.peer: entry for entry in record.updates}
    due = ledger.assignments.due(record.round) if record.round else frozenset[PeerId]()
    late = tuple(sorted(due - named.keys()))
    if me in named:
        weights = zip(record.updates, ledger.update_weights(record), strict=True)
        counts = any(weight for entry, weight in weights if entry.peer == me)
        return RoundAttendance("counted" if counts else "left_out", late)
    if me in due:
        return RoundAttendance("late", late)
    return RoundAttendance(
        "not_needed" if ledger.manifest.aggregates_in(record.round) else "no_work", late
    )
