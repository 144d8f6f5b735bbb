"""The outcome of a round for a node's own update, and the number of rounds with each outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...crypto.identity import PeerId

OwnRound = Literal["counted", "late", "left_out", "no_work", "not_needed"]
"""A node's part in a decided round: its update counted; its update was due and is not in the record
(`late`); its update is in the record and has no weight in the step (`left_out`); no samples were
assigned to it; or no update was due, because in this round committees aggregate those of the round
before."""

OWN_ROUNDS: dict[OwnRound, str] = {
    "counted": "your update counted",
    "late": "your update was late",
    "left_out": "your update was left out",
    "no_work": "you had no assignment",
    "not_needed": "no update of yours was needed",
}
"""Each outcome in words, for the end of a sentence."""


@dataclass(frozen=True)
class RoundAttendance:
    """Who took part in a decided round."""

    own: OwnRound
    late: tuple[PeerId, ...] = ()
    """Members whose update was due and is not in the record."""


@dataclass
class OwnRoundCounts:
    """Number of rounds with each outcome."""

    counted: int = 0
    late: int = 0
    left_out: int = 0
    no_work: int = 0
    not_needed: int = 0
    missed_in_a_row: int = 0
    """Number of updates that were due and did not count, since the last one that counted."""

    def add(self, own: OwnRound) -> None:
        """Add a round."""
        setattr(self, own, getattr(self, own) + 1)
        if own == "counted":
            self.missed_in_a_row = 0
        elif own in ("late", "left_out"):
            self.missed_in_a_row += 1
