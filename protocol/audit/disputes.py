"""Disputes over audits with a low score: other members re-audit, weighted by their votes.

If at most `JURY_SEATS` members have votes, all are called, and a majority of all votes settles the
dispute. If there are more, `JURY_SEATS` seats are drawn in proportion to votes, and more than two thirds
of the seats settle it. The dispute stays open, for a fixed time, until enough have answered; so it does
not matter who answers first or who puts which re-audit into a record. If it is never settled, no member
is blamed: either the audited sequence had little to learn, or another audit will catch the member.

With less than a third of all votes, byzantine members settle no dispute to which all are called, neither
in their own favour nor against others. Of sixteen drawn seats they hold the necessary eleven once in 250
disputes in a large swarm, and once in 9,600 in one of forty members (`tests/audit/test_disputes.py`).
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from ...crypto.hashing import CONTENT_ID_BYTES, content_id
from ...crypto.identity import PeerId
from ..util.draws import ranked

Finding = Literal["low", "spot", "fine"]
"""What a re-audit finds of a share: "low" (`verdict.failed`); the audited sequence alone is a low
"spot"; "fine": not even that one is low, or it is none of those that were re-audited."""
FINDINGS: tuple[Finding, ...] = get_args(Finding)
Outcome = Literal["open", "failed", "spared", "contradicted"]
"""Of a dispute. "failed": the share is low; "spared": the audited sequence is, but not the share;
"contradicted": the low score was wrong."""

JURY_SEATS = 16
"""Number of seats whose holders re-audit, if more members than this have votes. A member with many votes
may hold several."""
DRAW_LAG_ROUNDS = 4
"""Rounds from the record that holds an audit to the one whose beacon draws the re-auditors. Neither the
auditor nor the proposer of the first record can know what that beacon draws (`chain/beacon`)."""
REAUDIT_ROUNDS = 16
"""Rounds for which re-audits may be recorded. Members must keep updates, samples and parameters for that
long; byzantine leaders would have to keep honest re-audits out of all records for that long."""
OPEN_ROUNDS = DRAW_LAG_ROUNDS + REAUDIT_ROUNDS
"""Rounds from the record that holds the audit to the one that drops the dispute."""
MAX_REAUDITED_SEQUENCES = 8
"""Maximum number of a large share's sequences that are re-audited. They are drawn, and cannot be known
in time to compute only these."""


@dataclass(frozen=True, slots=True)
class Jury:
    """Members called to re-audit, and their weights."""

    weights: Mapping[PeerId, int] = field(default_factory=dict)
    drawn: bool = False
    """Whether seats were drawn: then weights are seats, otherwise votes."""

    @property
    def needed(self) -> int:
        """The weight that settles the dispute. If seats were drawn, more is needed, because a draw may
        favour byzantine members."""
        total = sum(self.weights.values())
        return 2 * total // 3 + 1 if self.drawn else total // 2 + 1


def draw_jury(votes: Mapping[PeerId, int], beacon: bytes) -> Jury:
    """Return the voters that are called to re-audit; `beacon` seeds the draw if there are more than
    `JURY_SEATS`.

    The members' votes lie on a line, one member after the other in a drawn order, and seats are spaced
    evenly on it: so each member gets its proportion of the seats to within one.
    """
    if len(votes) <= JURY_SEATS:
        return Jury(dict(votes))
    order = ranked(votes, beacon)
    bounds = list(itertools.accumulate(votes[peer] for peer in order))
    # A fraction of the line, not a number modulo its length: that would differ with each vote.
    drawn = int.from_bytes(content_id(b"distro-node seats\0" + beacon), "big")
    first = drawn * bounds[-1] >> 8 * CONTENT_ID_BYTES
    points = [(first + seat * bounds[-1]) // JURY_SEATS for seat in range(JURY_SEATS)]
    weights: dict[PeerId, int] = {}
    for point in points:
        peer = order[bisect_right(bounds, point)]
        weights[peer] = weights.get(peer, 0) + 1
    return Jury(weights, drawn=True)


def outcome(jury: Jury, reaudits: Mapping[PeerId, Finding], audited: PeerId) -> Outcome:
    """Return the outcome of the re-audits so far, given what each member's found.

    The `audited` member does not re-audit. As soon as any member finds the share not low, the audited
    member's own weight counts for that result, too. An auditor is contradicted only by members that find
    the sequence not low that it audited: a member may well omit one of two, and is not low for it.
    """
    low, spot, fine = (
        sum(jury.weights.get(peer, 0) for peer, found in reaudits.items() if found == kind)
        for kind in ("low", "spot", "fine")
    )
    own = jury.weights.get(audited, 0)
    if low >= jury.needed:
        return "failed"
    if fine and fine + own >= jury.needed:
        return "contradicted"
    # Whatever those say that have not answered, so that their order does not matter.
    most_fine = sum(jury.weights.values()) - low - spot
    if spot and spot + fine + own >= jury.needed and most_fine < jury.needed:
        return "spared"
    return "open"
