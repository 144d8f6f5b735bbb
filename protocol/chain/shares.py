"""Who computes what on a chain: the weights of its members, and the lanes that these come to.

All of it follows from the records (`weights`, `assignment`). What is needed of the latest rounds is at
hand; of older ones only some, at even distances, from which the rest is made again when it is asked for,
which seldom happens: somebody can make a chain in which every round changes every weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...crypto.identity import PeerId
from ..sampling.assignment import Assignment, Terms, Work, assign
from ..sampling.weights import Weight, modest_weight, next_weights
from ..wire.membership import Membership
from ..wire.messages import Record

# From one that is kept to the next. As many of the latest are all kept.
_APART = 128


@dataclass(frozen=True)
class Shares:
    """How it stands after a record: `round` is the next one."""

    round: int
    weights: Mapping[PeerId, Weight]
    dealt: tuple[Assignment, ...] = ()
    """Of the next round and, with `overlap`, the one after it."""
    works: tuple[Work, ...] = ()
    """What is under way of those with several rounds' time, by when it is due."""

    def part(self, peer: PeerId) -> float:
        """Which part of the work a member has, from 0 to 1, over several rounds if it needs these."""
        total = sum(weight.value for weight in self.weights.values())
        if peer in self.weights and not total:
            return 1 / len(self.weights)
        homes = self.dealt[0].homes if self.dealt else {}
        lanes = sum(len(run) for own in homes.values() for run in own)
        own = sum(len(run) for run in homes.get(peer, ()))
        # Who has none of its own has one now and then.
        return own / lanes if own else self.weights[peer].value / total

    @cached_property
    def sequences(self) -> Mapping[PeerId, int]:
        """By member, of how many sequences the update is to be that is due in the next round; a lane
        over several rounds is one."""
        runs = self.dealt[0].runs if self.dealt else {}
        late = {work.peer: work.lanes for work in self.works if work.due == self.round}
        return {peer: sum(map(len, lanes)) for peer, lanes in {**late, **runs}.items()}

    @property
    def due(self) -> frozenset[PeerId]:
        """The members whose update is due in the next round."""
        return frozenset(self.sequences)


@dataclass(frozen=True)
class Lost:
    """What a record leaves untrained."""

    runs: tuple[range, ...] = ()
    """Lanes of its own round."""
    works: tuple[Work, ...] = ()
    """What was dealt earlier."""


def first_shares(members: Membership) -> Shares:
    """How it stands before any record."""
    return Shares(0, dict.fromkeys(members.peers, Weight()))


def next_shares(
    terms: Terms, shares: Shares, record: Record, members: Membership, overlap: bool
) -> tuple[Shares, Lost]:
    """How it stands after the `record` of the round that `shares` are of, with the `members` of the next
    one; and what it has lost."""
    round_ = shares.round
    counted = {entry.peer for entry in record.updates}
    # In the rounds that end a run there is nothing to be late with.
    due = shares.due if terms.trains(round_) else frozenset()
    weights = next_weights(shares.weights, due, record, members.peers, terms.order.lanes)
    runs = shares.dealt[0].runs if shares.dealt else {}
    lost = tuple(run for peer, own in runs.items() if peer not in counted for run in own)
    failed = tuple(
        work
        for work in shares.works
        if (work.peer not in counted if work.due == round_ else work.peer not in members)
    )
    works = [work for work in shares.works if work.due > round_ and work not in failed]
    # Round 0 trains nothing, so there is time to deal the first round, and with `overlap` the second.
    last = round_ + 1 + overlap
    numbers = range(last if round_ else 1, last + 1)
    made = tuple(_deal(terms, members, weights, works, shares.dealt, numbers))
    works += [work for assigned in made for work in assigned.works]
    works.sort(key=lambda work: (work.due, work.peer))
    after = Shares(round_ + 1, weights, (*shares.dealt[1:], *made), tuple(works))
    return after, Lost(lost, failed)


def upcoming(
    terms: Terms, shares: Shares, members: Membership, peer: PeerId, rounds: int
) -> Iterator[Assignment]:
    """Who will have the lanes of so many rounds behind those that are dealt, if all goes on as it is,
    with `peer` among the members."""
    weights = shares.weights
    if peer not in members:
        members = Membership(since={**members.since, peer: shares.round})
        weights = {**weights, peer: modest_weight(weights)}
    first = max((assigned.round for assigned in shares.dealt), default=0) + 1
    numbers = range(first, first + rounds)
    return _deal(terms, members, weights, shares.works, shares.dealt, numbers)


def _deal(
    terms: Terms,
    members: Membership,
    weights: Mapping[PeerId, Weight],
    works: Iterable[Work],
    dealt: Sequence[Assignment],
    numbers: Iterable[int],
) -> Iterator[Assignment]:
    """Who has the lanes of the rounds with these numbers, one after the other, behind those that are
    `dealt`, while these `works` are under way."""
    under_way, before = list(works), dealt[-1] if dealt else None
    for number in numbers:
        busy = {work.peer for work in under_way if work.due >= number}
        before = made = assign(terms, members, weights, busy, before, number)
        under_way += made.works
        yield made


class SharesByRound:
    """How it stood before each round, to be grown by one."""

    def __init__(self, terms: Terms, first: Membership, overlap: bool) -> None:
        self._terms = terms
        self._overlap = overlap
        self._length = 1
        self._kept = {0: first_shares(first)}

    def __len__(self) -> int:
        return self._length

    def follow(self, record: Record, members: Membership) -> Lost:
        """Add what is after the last `record`, which must have been checked. Returns what it lost."""
        shares, lost = self._after(self._kept[self._length - 1], record, members)
        self._kept[self._length] = shares
        old = self._length - _APART
        if old % _APART:
            self._kept.pop(old, None)
        self._length += 1
        return lost

    def at(
        self, round: int, records: Callable[[int], Record], members: Callable[[int], Membership]
    ) -> Shares:
        """How it stood before a round, at most the next one; with all records and memberships."""
        first = round
        while first not in self._kept:
            first -= 1
        shares = self._kept[first]
        for number in range(first, round):
            shares, _ = self._after(shares, records(number), members(number + 1))
        return shares

    def before(
        self, length: int, records: Callable[[int], Record], members: Callable[[int], Membership]
    ) -> SharesByRound:
        """Those of the first `length` rounds."""
        copy = SharesByRound(self._terms, members(0), self._overlap)
        copy._length = length
        # At once: another thread may add to it.
        kept = list(self._kept.items())
        copy._kept = {round_: shares for round_, shares in kept if round_ < length}
        copy._kept[length - 1] = self.at(length - 1, records, members)
        return copy

    def _after(self, shares: Shares, record: Record, members: Membership) -> tuple[Shares, Lost]:
        return next_shares(self._terms, shares, record, members, self._overlap)
