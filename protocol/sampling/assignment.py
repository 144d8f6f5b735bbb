"""Which lanes of the sample stream a member has in a round: a function of what all members know.

A round takes one sample of each lane (`sampler`, `deal`). The members have the lanes in proportion to
their weights, so shares never overlap and nobody has to announce one.
Whoever cannot do a single sequence while the others do their share gets one lane, and so many rounds'
time for it; its update is due in the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...crypto.identity import PeerId
from ..wire.membership import Membership
from .apportion import apportion, most_lanes, pace_of, time_of
from .deal import Deal
from .sampler import Order
from .weights import Weight

MOST_ROUNDS = 64
"""The longest that anybody has for a sequence. What is under way for longer has seen another model, and
each is kept by everybody until it is due."""

Lanes = tuple[range, ...]
"""Some lanes, in order."""


@dataclass(frozen=True)
class Work:
    """A lane that was dealt to somebody with several rounds' time."""

    peer: PeerId
    lane: int
    dealt: int
    """The round that gives the lane's sample."""
    due: int
    """The round in which the update counts."""

    @property
    def lanes(self) -> Lanes:
        """The lane."""
        return (range(self.lane, self.lane + 1),)


@dataclass(frozen=True)
class Assignment:
    """Who has the lanes of one round."""

    round: int
    runs: Mapping[PeerId, Lanes] = field(default_factory=dict)
    """Of the members whose update is due in the round."""
    works: tuple[Work, ...] = ()
    """Of those with several rounds' time."""
    homes: Mapping[PeerId, Lanes] = field(default_factory=dict)
    """Whose lane each is when none is lent."""

    def lanes_of(self, peer: PeerId) -> Lanes:
        """The lanes of a member, if any."""
        for work in self.works:
            if work.peer == peer:
                return work.lanes
        return self.runs.get(peer, ())


@dataclass(frozen=True)
class Terms:
    """What does not change in a run."""

    order: Order
    max_share: float
    """The largest part of the lanes for one member, where there are enough members for that; 0: all have
    the same."""
    trains: Callable[[int], bool]
    """Whether anybody trains in a round."""
    lent: int = 2
    """Which part of the lanes may go to those who have several rounds' time: one of so many."""


def assign(
    terms: Terms,
    members: Membership,
    weights: Mapping[PeerId, Weight],
    busy: Collection[PeerId],
    before: Assignment | None,
    round: int,
) -> Assignment:
    """Who has the lanes of a round, from 1 on; `busy` are at work for a later one. `before` is the
    assignment of the round before.

    A member keeps its lanes while a span lasts, but for those that it has too many, so that it needs
    little more of the corpus than it trains. Then all are dealt anew, and each has those of its
    neighbour: a remainder falls on everybody alike, and what somebody who is always late leaves
    untrained comes to others. With fewer lanes than members everybody takes turns.
    """
    lanes, count = terms.order.lanes, len(members)

    def turn_of(number: int) -> int:
        return number if lanes < count else (number - 1) // terms.order.span

    first = -turn_of(round) % count
    circle = [*members.peers[-first:], *members.peers[:-first]] if first else list(members.peers)
    free = [peer for peer in circle if peer not in busy] or circle
    numbers = tuple(max(1, weights[peer].value) for peer in free)
    given = apportion(lanes, numbers, most_lanes(lanes, len(free), terms.max_share))
    goes_on = before is not None and turn_of(before.round) == turn_of(round)
    known = before.homes if before is not None and goes_on else {}
    homes = _settle(lanes, dict(zip(free, given, strict=True)), known)
    lent = _lend(terms, free, numbers, list(given), round)
    runs, works = dict(homes), list[Work]()
    for index, rounds, lender in lent:
        runs[free[lender]], (lane,) = _split(runs[free[lender]], 1)
        works.append(Work(free[index], lane.start, round, round + rounds - 1))
    runs = {peer: own for peer, own in runs.items() if own}
    return Assignment(round, runs, tuple(sorted(works, key=lambda work: work.peer)), homes)


def _settle(
    lanes: int, given: Mapping[PeerId, int], known: Mapping[PeerId, Lanes]
) -> Mapping[PeerId, Lanes]:
    """Lanes for each as many as are given, moved as little as can be from where they are known to be."""
    if (
        given == {peer: _size(known.get(peer, ())) for peer in given}
        and known.keys() <= given.keys()
    ):
        return known if len(known) == len(given) else {peer: known.get(peer, ()) for peer in given}
    kept: dict[PeerId, Lanes] = {}
    free = [run for peer, own in known.items() if peer not in given for run in own]
    for peer, wanted in given.items():
        own = known.get(peer, ())
        kept[peer], surplus = _split(own, max(0, _size(own) - wanted))
        free += surplus
    left: Lanes = _joined(free) if known else (range(lanes),)
    for peer, wanted in given.items():
        lacking = wanted - _size(kept[peer])
        if lacking:
            taken, left = _split(left, _size(left) - lacking)
            kept[peer] = _joined([*kept[peer], *taken])
    return kept


def _lend(
    terms: Terms, free: list[PeerId], weights: tuple[int, ...], given: list[int], round: int
) -> list[tuple[int, int, int]]:
    """Lanes for those who need several rounds for one: to whom, for how long, and from whom, which is
    whoever takes longest."""
    pace = pace_of(given, weights)
    slow: list[tuple[int, int]] = []
    for index, lanes in enumerate(given):
        if lanes == 0:
            rounds = min(-(-time_of(1, weights[index]) // pace), MOST_ROUNDS)
            if rounds > 1 and terms.trains(round + rounds - 1):
                slow.append((index, rounds))
    # If they are too many for one round, not always the same ones wait.
    shift = round % len(slow) if slow else 0
    lent: list[tuple[int, int, int]] = []
    for index, rounds in [*slow[shift:], *slow[:shift]][: max(1, terms.order.lanes // terms.lent)]:
        lender = max(
            range(len(given)), key=lambda at: (given[at] and time_of(given[at], weights[at]), -at)
        )
        given[lender] -= 1
        lent.append((index, rounds, lender))
    return lent


def samples_of(order: Order, deals: Sequence[Deal], lanes: Sequence[Lanes]) -> tuple[int, ...]:
    """The samples of these lanes: round by round, one a lane."""
    chosen = [
        np.array([lane for run in own for lane in run], np.int64).reshape(-1) for own in lanes
    ]
    rows = [deal.rows(order.lanes)[own] for deal, own in zip(deals, chosen, strict=True)]
    if not chosen:
        return ()
    return tuple(order.samples_at(np.concatenate(chosen), np.concatenate(rows)))


def _size(lanes: Lanes) -> int:
    return sum(len(run) for run in lanes)


def _joined(runs: Sequence[range]) -> Lanes:
    """The same lanes in order, in as few runs as there can be."""
    joined: list[range] = []
    for run in sorted(runs, key=lambda run: run.start):
        if joined and joined[-1].stop == run.start:
            joined[-1] = range(joined[-1].start, run.stop)
        elif run:
            joined.append(run)
    return tuple(joined)


def _split(lanes: Lanes, last: int) -> tuple[Lanes, Lanes]:
    """All but the `last` so many of these lanes, and those."""
    kept, taken = list(lanes), list[range]()
    while last > 0:
        run = kept.pop()
        cut = max(0, len(run) - last)
        if cut:
            kept.append(run[:cut])
        taken.insert(0, run[cut:])
        last -= len(run) - cut
    return tuple(kept), tuple(taken)
