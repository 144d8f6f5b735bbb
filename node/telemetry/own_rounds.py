"""What became of a node's own part in a round, and the rounds of each kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...crypto.identity import PeerId
from ...protocol.chain.ledger import Ledger
from ...protocol.wire.messages import Record

OwnRound = Literal["counted", "late", "left_out", "no_work", "not_needed"]
"""A node's part in a decided round: its update counted; one was due and is not in the record; it is in
the record and has no weight in the step; no samples were assigned to the node; or the round needed no
update of it, since in this round committees aggregate those of the round before."""

OWN_ROUNDS: dict[OwnRound, str] = {
    "counted": "your update counted",
    "late": "your update was late",
    "left_out": "your update was left out",
    "no_work": "you had no work in it",
    "not_needed": "no update of yours was needed",
}
"""The same in words, for the end of a sentence."""


@dataclass(frozen=True)
class RoundAttendance:
    """Who took part in a decided round."""

    own: OwnRound
    late: tuple[PeerId, ...] = ()
    """Members whose update was due and is not in the record."""


def attendance_of(ledger: Ledger, record: Record, me: PeerId) -> RoundAttendance:
    """Return who took part in the round of a checked `record` of this ledger."""
    named = {entry.peer: entry for entry in record.updates}
    due = ledger.dealing.due(record.round) if record.round else frozenset[PeerId]()
    late = tuple(sorted(due - named.keys()))
    if me in named:
        weights = zip(record.updates, ledger.counts(record), strict=True)
        counts = any(weight for entry, weight in weights if entry.peer == me)
        return RoundAttendance("counted" if counts else "left_out", late)
    if me in due:
        return RoundAttendance("late", late)
    return RoundAttendance(
        "not_needed" if ledger.manifest.speaks(record.round) else "no_work", late
    )


@dataclass
class OwnRoundCounts:
    """Number of rounds of each kind."""

    counted: int = 0
    late: int = 0
    left_out: int = 0
    no_work: int = 0
    not_needed: int = 0
    missed_in_a_row: int = 0
    """Updates that were due and did not count since the last one that did."""

    def add(self, own: OwnRound) -> None:
        """Add a round."""
        setattr(self, own, getattr(self, own) + 1)
        if own == "counted":
            self.missed_in_a_row = 0
        elif own in ("late", "left_out"):
            self.missed_in_a_row += 1
