"""Assignment of streams to members in a round: a function of state that all members share.

A round takes one sample of each stream (`sampler`, `deal`). Members get streams in proportion to their
weights, so shares never overlap and no member has to announce one. A member that cannot compute a
single sequence while the others compute their shares gets one stream, and the time of several rounds
for it; its update is due in the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...crypto.identity import PeerId
from ..wire.membership import Membership
from .apportionment import apportion, most_lanes, pace_of, time_of
from .member_weights import MemberWeight
from .sampler import StreamOrder
from .stream_cursor import StreamCursors

MOST_ROUNDS = 64
"""The longest time for one sequence. A longer computation would use an outdated model, and every member
keeps each open assignment until it is due."""

Lanes = tuple[range, ...]
"""Runs of streams, in order."""


@dataclass(frozen=True)
class LentStream:
    """Multi-round assignment: one stream for a member that needs several rounds."""

    peer: PeerId
    lane: int
    dealt: int
    """The round whose sample of the stream is assigned."""
    due: int
    """The round in which the update counts."""

    @property
    def lanes(self) -> Lanes:
        """The stream, as a run."""
        return (range(self.lane, self.lane + 1),)


@dataclass(frozen=True)
class Assignment:
    """Assignment of the streams of one round."""

    round: int
    runs: Mapping[PeerId, Lanes] = field(default_factory=dict)
    """Streams by member whose update is due in the round."""
    works: tuple[LentStream, ...] = ()
    """Multi-round assignments that begin in the round."""
    homes: Mapping[PeerId, Lanes] = field(default_factory=dict)
    """Streams by member before any are lent."""

    def lanes_of(self, peer: PeerId) -> Lanes:
        """Return the streams of a member, if any."""
        for work in self.works:
            if work.peer == peer:
                return work.lanes
        return self.runs.get(peer, ())


@dataclass(frozen=True)
class Terms:
    """Parameters of the assignment that are constant over a run."""

    order: StreamOrder
    max_share: float
    """The largest fraction of the streams for one member, where there are enough members for it; 0: all
    have the same."""
    trains: Callable[[int], bool]
    """Whether members train in a round."""
    lent: int = 2
    """One in this many streams may be lent to members that need several rounds."""


def assign(
    terms: Terms,
    members: Membership,
    weights: Mapping[PeerId, MemberWeight],
    busy: Collection[PeerId],
    before: Assignment | None,
    round: int,
) -> Assignment:
    """Return the assignment of a round, from 1 on. `busy`: members that are computing for a later
    round; `before`: the assignment of the round before.

    A member keeps its streams while a span lasts, except surplus ones, so that it needs little more of
    the corpus than it trains on. Then all streams are reassigned, and each member gets those of its
    neighbour: so remainders fall on all members alike, and samples that a slow member leaves untrained
    move to others. With fewer streams than members, members take turns.
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
    runs, works = dict(homes), list[LentStream]()
    for index, rounds, lender in lent:
        runs[free[lender]], (lane,) = _split(runs[free[lender]], 1)
        works.append(LentStream(free[index], lane.start, round, round + rounds - 1))
    runs = {peer: own for peer, own in runs.items() if own}
    return Assignment(round, runs, tuple(sorted(works, key=lambda work: work.peer)), homes)


def _settle(
    lanes: int, given: Mapping[PeerId, int], known: Mapping[PeerId, Lanes]
) -> Mapping[PeerId, Lanes]:
    """Return as many streams for each member as are given, with the fewest moves from the `known`
    ones."""
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
    """Lend streams to members that need several rounds for one. Returns for each the borrower, the
    number of rounds, and the lender: the member that takes longest."""
    pace = pace_of(given, weights)
    takes_turns = terms.order.lanes < len(given)
    slow: list[tuple[int, int]] = []
    for index, lanes in enumerate(given):
        if lanes == 0:
            rounds = min(-(-time_of(1, weights[index]) // pace), MOST_ROUNDS)
            # A tie may leave it without a stream although it could compute one.
            rounds = rounds if takes_turns else max(2, rounds)
            if rounds > 1 and terms.trains(round + rounds - 1):
                slow.append((index, rounds))
    # If they are too many for one round, rotate which of them wait.
    shift = round % len(slow) if slow else 0
    lent: list[tuple[int, int, int]] = []
    for index, rounds in [*slow[shift:], *slow[:shift]][: max(1, terms.order.lanes // terms.lent)]:
        lender = max(
            range(len(given)), key=lambda at: (given[at] and time_of(given[at], weights[at]), -at)
        )
        given[lender] -= 1
        lent.append((index, rounds, lender))
    return lent


def samples_of(
    order: StreamOrder, deals: Sequence[StreamCursors], lanes: Sequence[Lanes]
) -> tuple[int, ...]:
    """Return the samples of these streams: round by round, one a stream."""
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
    """Return the same streams in order, in the fewest runs."""
    joined: list[range] = []
    for run in sorted(runs, key=lambda run: run.start):
        if joined and joined[-1].stop == run.start:
            joined[-1] = range(joined[-1].start, run.stop)
        elif run:
            joined.append(run)
    return tuple(joined)


def _split(lanes: Lanes, last: int) -> tuple[Lanes, Lanes]:
    """Return these streams without the `last` ones, and the `last` ones."""
    kept, taken = list(lanes), list[range]()
    while last > 0:
        run = kept.pop()
        cut = max(0, len(run) - last)
        if cut:
            kept.append(run[:cut])
        taken.insert(0, run[cut:])
        last -= len(run) - cut
    return tuple(kept), tuple(taken)
