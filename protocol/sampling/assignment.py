"""Assignment of streams to members in a round: a function of state that all members share.

A round takes one sample of each stream (`sampler`, `stream_cursor`). Members get streams in proportion
to their weights, so shares never overlap and no member has to announce one. A member that cannot compute
a single sequence while the others compute their shares gets one stream, and the time of several rounds
for it; its update is due in the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...crypto.identity import PeerId
from ..wire.membership import Membership
from .apportionment import apportion, max_streams, pace_of, time_of
from .member_weights import MemberWeight
from .sampler import StreamOrder
from .stream_cursor import StreamCursors

MOST_ROUNDS = 64
"""The longest time for one sequence. A longer computation would use an outdated model, and every member
keeps each open assignment until it is due."""

Streams = tuple[range, ...]
"""Runs of streams, in order."""


@dataclass(frozen=True)
class LentStream:
    """Multi-round assignment: one stream for a member that needs several rounds."""

    peer: PeerId
    stream: int
    assigned_in: int
    """The round whose sample of the stream is assigned."""
    due: int
    """The round in which the update counts."""

    @property
    def streams(self) -> Streams:
        """The stream, as a run."""
        return (range(self.stream, self.stream + 1),)


@dataclass(frozen=True)
class Assignment:
    """Assignment of the streams of one round."""

    round: int
    runs: Mapping[PeerId, Streams] = field(default_factory=dict)
    """For each member whose update is due in the round, its streams."""
    lent_streams: tuple[LentStream, ...] = ()
    """Multi-round assignments that begin in the round."""
    before_lending: Mapping[PeerId, Streams] = field(default_factory=dict)
    """Each member's streams before any are lent."""

    def streams_of(self, peer: PeerId) -> Streams:
        """Return the streams of a member, if any."""
        for work in self.lent_streams:
            if work.peer == peer:
                return work.streams
        return self.runs.get(peer, ())


@dataclass(frozen=True)
class AssignmentRules:
    """Parameters of the assignment that are constant over a run."""

    order: StreamOrder
    max_share: float
    """The largest fraction of the streams for one member, if there are enough members to bound it
    (`apportionment.max_streams`); 0: all have the same number."""
    trains: Callable[[int], bool]
    """Whether members train in a round."""
    lent: int = 2
    """One in this many streams may be lent to members that need several rounds."""


def assign(
    rules: AssignmentRules,
    members: Membership,
    weights: Mapping[PeerId, MemberWeight],
    busy: Collection[PeerId],
    before: Assignment | None,
    round: int,
) -> Assignment:
    """Return the assignment of a round, from 1 on. `busy`: members that are computing for a later
    round; `before`: the assignment of the round before.

    A member keeps its streams while a span lasts (`StreamOrder.span`), except surplus ones, so that it
    needs little more of the corpus than it trains on. Then all streams are reassigned, and each member
    gets those of its neighbour: so in the long run rounding favours no member, and samples that a slow
    member leaves untrained move to others. With fewer streams than members, members take turns.
    """
    streams, count = rules.order.streams, len(members)

    def rotation_of(number: int) -> int:
        return number if streams < count else (number - 1) // rules.order.span

    first = -rotation_of(round) % count
    circle = [*members.peers[-first:], *members.peers[:-first]] if first else list(members.peers)
    free = [peer for peer in circle if peer not in busy] or circle
    numbers = tuple(max(1, weights[peer].value) for peer in free)
    given = apportion(streams, numbers, max_streams(streams, len(free), rules.max_share))
    continues = before is not None and rotation_of(before.round) == rotation_of(round)
    known = before.before_lending if before is not None and continues else {}
    before_lending = _settle(streams, dict(zip(free, given, strict=True)), known)
    lent = _lend(rules, free, numbers, list(given), round)
    runs, lent_streams = dict(before_lending), list[LentStream]()
    for index, rounds, lender in lent:
        runs[free[lender]], (stream,) = _split(runs[free[lender]], 1)
        lent_streams.append(LentStream(free[index], stream.start, round, round + rounds - 1))
    runs = {peer: own for peer, own in runs.items() if own}
    return Assignment(
        round, runs, tuple(sorted(lent_streams, key=lambda work: work.peer)), before_lending
    )


def _settle(
    streams: int, given: Mapping[PeerId, int], known: Mapping[PeerId, Streams]
) -> Mapping[PeerId, Streams]:
    """Return streams for each member, as many as `given` states, with as few moves from the `known` ones
    as possible."""
    if (
        given == {peer: _size(known.get(peer, ())) for peer in given}
        and known.keys() <= given.keys()
    ):
        return known if len(known) == len(given) else {peer: known.get(peer, ()) for peer in given}
    kept: dict[PeerId, Streams] = {}
    free = [run for peer, own in known.items() if peer not in given for run in own]
    for peer, wanted in given.items():
        own = known.get(peer, ())
        kept[peer], surplus = _split(own, max(0, _size(own) - wanted))
        free += surplus
    left: Streams = _joined(free) if known else (range(streams),)
    for peer, wanted in given.items():
        lacking = wanted - _size(kept[peer])
        if lacking:
            taken, left = _split(left, _size(left) - lacking)
            kept[peer] = _joined([*kept[peer], *taken])
    return kept


def _lend(
    rules: AssignmentRules,
    free: list[PeerId],
    weights: tuple[int, ...],
    given: list[int],
    round: int,
) -> list[tuple[int, int, int]]:
    """Lend streams to members that need several rounds for one sequence. Returns for each stream the
    borrower, the number of rounds, and the lender, which is the member that takes longest; members are
    given by their index in `free`."""
    pace = pace_of(given, weights)
    takes_turns = rules.order.streams < len(given)
    slow: list[tuple[int, int]] = []
    for index, streams in enumerate(given):
        if streams == 0:
            rounds = min(-(-time_of(1, weights[index]) // pace), MOST_ROUNDS)
            # A tie may leave it without a stream although it could compute a sequence in one round.
            rounds = rounds if takes_turns else max(2, rounds)
            if rounds > 1 and rules.trains(round + rounds - 1):
                slow.append((index, rounds))
    # If there are too many slow members for one round, they wait in turn.
    shift = round % len(slow) if slow else 0
    lent: list[tuple[int, int, int]] = []
    for index, rounds in [*slow[shift:], *slow[:shift]][
        : max(1, rules.order.streams // rules.lent)
    ]:
        lender = max(
            range(len(given)), key=lambda at: (given[at] and time_of(given[at], weights[at]), -at)
        )
        given[lender] -= 1
        lent.append((index, rounds, lender))
    return lent


def samples_of(
    order: StreamOrder, cursors: Sequence[StreamCursors], streams: Sequence[Streams]
) -> tuple[int, ...]:
    """Return the samples of these streams, one for each stream, round by round: `cursors` has the
    cursors of each round, `streams` its streams."""
    chosen = [
        np.array([stream for run in own for stream in run], np.int64).reshape(-1) for own in streams
    ]
    rows = [cursor.rows(order.streams)[own] for cursor, own in zip(cursors, chosen, strict=True)]
    if not chosen:
        return ()
    return tuple(order.samples_at(np.concatenate(chosen), np.concatenate(rows)))


def _size(streams: Streams) -> int:
    return sum(len(run) for run in streams)


def _joined(runs: Sequence[range]) -> Streams:
    """Return the streams of these runs in order, in as few runs as possible."""
    joined: list[range] = []
    for run in sorted(runs, key=lambda run: run.start):
        if joined and joined[-1].stop == run.start:
            joined[-1] = range(joined[-1].start, run.stop)
        elif run:
            joined.append(run)
    return tuple(joined)


def _split(streams: Streams, last: int) -> tuple[Streams, Streams]:
    """Return these streams without the last ones, and the last ones; `last` is their number."""
    kept, taken = list(streams), list[range]()
    while last > 0:
        run = kept.pop()
        cut = max(0, len(run) - last)
        if cut:
            kept.append(run[:cut])
        taken.insert(0, run[cut:])
        last -= len(run) - cut
    return tuple(kept), tuple(taken)
