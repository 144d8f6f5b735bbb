"""What becomes of a low first look: others look again, and count with their votes.

Up to `SEATS` members with votes are all called, and what most of all votes say is so. Where there are
more, seats are drawn on the line of all votes, and it takes two thirds of the seats. So who speaks first
is of no account, nor who puts whose look into a record: as long as it has not been said by enough, the
dispute is open, for a fixed time. If it stays open, nobody is blamed: one who did little of the work, or
a sequence in which there is little to learn, is met again.

With less than a third of all votes liars settle nothing where all are called, neither for themselves nor
against anybody. Of sixteen seats drawn they have the eleven that it takes once in 250 disputes where
members are many, and once in 9,600 of forty members (`tests/checks/test_disputes.py`).
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ...crypto.hashing import content_id
from ...crypto.identity import PeerId

Outcome = Literal["open", "failed", "contradicted"]

SEATS = 16
"""So many are called, or all if there are no more. Whoever has many votes may have several seats."""
LAG = 4
"""Rounds from the record that holds a first look to the one whose beacon draws who looks again. Whoever
tells a look, and whoever puts it into a record, does not know yet what it draws (`chain/beacon`)."""
LASTS = 16
"""Rounds for which second looks may be recorded. So long updates, samples and parameters must be kept,
and so long it takes to keep honest ones out of all records."""
OPEN = LAG + LASTS
"""Rounds after which a dispute is dropped."""
MOST_SEQUENCES = 8
"""Of a large share no more are looked at again. They are drawn, and nobody knows them in time."""


@dataclass(frozen=True, slots=True)
class Called:
    """Those who are to look again, and what each counts for."""

    weights: Mapping[PeerId, int] = field(default_factory=dict)
    drawn: bool = False
    """Whether seats were drawn; else all have their votes."""

    @property
    def needed(self) -> int:
        """What is said by so many is so. A draw may be a bad one, so it takes more of one."""
        total = sum(self.weights.values())
        return 2 * total // 3 + 1 if self.drawn else total // 2 + 1


def call(votes: Mapping[PeerId, int], lot: bytes) -> Called:
    """Who of those with votes is called; `lot` draws where they are many.

    Seats lie at even distances on the line of all votes, in an order that is drawn: so nobody has more
    or less of them than its part of the votes but for one.
    """
    if len(votes) <= SEATS:
        return Called(dict(votes))
    order = sorted(votes, key=lambda peer: content_id(lot + peer))
    bounds = list(itertools.accumulate(votes[peer] for peer in order))
    first = int.from_bytes(content_id(b"distro-node seats\0" + lot), "big") % bounds[-1]
    points = [(first + seat * bounds[-1]) // SEATS for seat in range(SEATS)]
    weights: dict[PeerId, int] = {}
    for point in points:
        peer = order[bisect_right(bounds, point)]
        weights[peer] = weights.get(peer, 0) + 1
    return Called(weights, drawn=True)


def outcome(called: Called, again: Mapping[PeerId, bool], checked: PeerId) -> Outcome:
    """What second looks come to: of each who looked, whether the share is low; in any order.

    The `checked` member does not look: as soon as anybody says that its share is not low, it counts as
    saying so too.
    """
    low = _weight(called, (peer for peer, said in again.items() if said))
    fine = _weight(called, (peer for peer, said in again.items() if not said))
    if low >= called.needed:
        return "failed"
    if fine and fine + called.weights.get(checked, 0) >= called.needed:
        return "contradicted"
    return "open"


def _weight(called: Called, peers: Iterable[PeerId]) -> int:
    return sum(called.weights.get(peer, 0) for peer in peers)
