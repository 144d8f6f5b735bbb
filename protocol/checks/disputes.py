"""What becomes of a low first look: others look again, and nearly all of them must say the same.

Only then has a check failed, or has the first look been contradicted. Where they differ nobody is
blamed: one who did little of the work, or a sequence in which there is little to learn, is met again.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Literal

from ...crypto.identity import PeerId

Outcome = Literal["open", "failed", "contradicted"]

AGAIN = 5
"""So many second looks settle a dispute, the first ones that are recorded."""
AGREEING = 4
"""So many of these must agree. Whoever looked was called by a draw in proportion to its votes: liars
with a tenth of all votes have four of five once in two thousand disputes, with a third once in
twenty-two."""
CALLED = 8
"""So many are called on average, since some are away."""
LASTS = 16
"""Rounds after which a dispute is dropped. So long updates, samples and parameters must be kept."""
MOST_SEQUENCES = 8
"""Of a large share no more are looked at again. They are drawn, and nobody knows them in time."""


def chance_to_be_called(votes: int, all_votes: int, possible: int) -> Fraction:
    """How probable it is that a member with so many votes is called to a dispute.

    `possible`: as for `outcome`. Where all have to agree all are called, or one with few votes, who is
    seldom called, would keep every dispute open.
    """
    if possible < AGAIN:
        return Fraction(1)
    return min(Fraction(1), Fraction(CALLED * votes, all_votes)) if all_votes > 0 else Fraction(0)


def outcome(again: Mapping[PeerId, bool], possible: int) -> Outcome:
    """What second looks come to: of each looker in the order of their recording, whether the share is
    low.

    `possible`: how many there are that could look again, besides the checked member and its first
    looker. In a swarm with fewer than `AGAIN` of them all must look and agree; with none it stays open.
    """
    wanted = min(AGAIN, possible)
    heard = list(again.values())[:wanted]
    agreeing = min(AGREEING, possible)
    if not wanted:
        return "open"
    if sum(heard) >= agreeing:
        return "failed"
    return "contradicted" if len(heard) - sum(heard) >= agreeing else "open"
