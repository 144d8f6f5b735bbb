"""Member weights on a chain, and the assignments that follow from them: which streams, the strands of
the training data, each member trains on.

Everything follows from the records (`sampling/member_weights`, `sampling/assignment`). The states of the
latest rounds are kept; of older rounds only some, at even distances. The others are recomputed from
these on request, which is rare. Not all are kept, because a byzantine peer can make a chain in which
every round changes every weight, and memory must stay bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...crypto.identity import PeerId
from ..sampling.assignment import Assignment, AssignmentRules, LentStream, assign
from ..sampling.member_weights import MemberWeight, modest_weight, next_weights
from ..wire.membership import Membership
from ..wire.messages import Record
from ..wire.saved_state import Restorable, RestoreScope, apart, fields, of, table

# Number of rounds from one kept older state to the next. This many of the latest are all kept.
_SPACING = 128


@dataclass(frozen=True)
class RoundShares:
    """Weights and assignments after a record; `round` is the next round."""

    round: int
    weights: Mapping[PeerId, MemberWeight]
    assignments: tuple[Assignment, ...] = ()
    """Assignments of the next round and, with `overlap` (updates are computed a round ahead), of the one
    after it."""
    lent_streams: tuple[LentStream, ...] = ()
    """Open multi-round assignments (each a stream lent to a member that needs several rounds for one
    sequence), sorted by the round in which they are due."""

    def part(self, peer: PeerId) -> float:
        """Return the fraction of the work that a member does, from 0 to 1; for a member that takes
        several rounds for a sequence, its average per round."""
        total = sum(weight.value for weight in self.weights.values())
        if peer in self.weights and not total:
            return 1 / len(self.weights)
        before_lending = self.assignments[0].before_lending if self.assignments else {}
        streams = sum(len(run) for own in before_lending.values() for run in own)
        own = sum(len(run) for run in before_lending.get(peer, ()))
        # A member without a stream of its own is lent one now and then.
        return own / streams if own else self.weights[peer].value / total

    @cached_property
    def sequences(self) -> Mapping[PeerId, int]:
        """For each member whose update is due in the next round, its number of sequences; one for a
        member that takes several rounds for a sequence."""
        runs = self.assignments[0].runs if self.assignments else {}
        lent = {work.peer: work.streams for work in self.lent_streams if work.due == self.round}
        return {peer: sum(map(len, streams)) for peer, streams in {**lent, **runs}.items()}

    @property
    def due(self) -> frozenset[PeerId]:
        """The members whose update is due in the next round."""
        return frozenset(self.sequences)


@dataclass(frozen=True)
class UntrainedWork:
    """Assignments that a record leaves untrained."""

    runs: tuple[range, ...] = ()
    """Streams of its own round."""
    lent_streams: tuple[LentStream, ...] = ()
    """Multi-round assignments of earlier rounds."""


def first_shares(members: Membership) -> RoundShares:
    """Return the state before any record: the initial weights, and no assignments."""
    return RoundShares(0, dict.fromkeys(members.peers, MemberWeight()))


def next_shares(
    rules: AssignmentRules, shares: RoundShares, record: Record, members: Membership, overlap: bool
) -> tuple[RoundShares, UntrainedWork]:
    """Return the state after the `record` of the round of `shares`, with the `members` of the next
    round; and what the record leaves untrained."""
    round_ = shares.round
    counted = {entry.peer for entry in record.updates}
    # The closing rounds at the end of a run train nothing, so no update is due in them.
    due = shares.due if rules.trains(round_) else frozenset()
    weights = next_weights(shares.weights, due, record, members.peers, rules.order.streams)
    runs = shares.assignments[0].runs if shares.assignments else {}
    lost = tuple(run for peer, own in runs.items() if peer not in counted for run in own)
    failed = tuple(
        work
        for work in shares.lent_streams
        if (work.peer not in counted if work.due == round_ else work.peer not in members)
    )
    lent_streams = [
        work for work in shares.lent_streams if work.due > round_ and work not in failed
    ]
    # Round 0 trains nothing, so its record assigns the first round and, with `overlap`, the second.
    last = round_ + 1 + overlap
    numbers = range(last if round_ else 1, last + 1)
    made = tuple(_assign_rounds(rules, members, weights, lent_streams, shares.assignments, numbers))
    lent_streams += [work for assigned in made for work in assigned.lent_streams]
    lent_streams.sort(key=lambda work: (work.due, work.peer))
    after = RoundShares(round_ + 1, weights, (*shares.assignments[1:], *made), tuple(lent_streams))
    return after, UntrainedWork(lost, failed)


def upcoming(
    rules: AssignmentRules, shares: RoundShares, members: Membership, peer: PeerId, rounds: int
) -> Iterator[Assignment]:
    """Return the assignments of the `rounds` rounds after those in `shares`, on the assumption that
    weights and members do not change and that `peer` is a member."""
    weights = shares.weights
    if peer not in members:
        members = Membership(since={**members.since, peer: shares.round})
        weights = {**weights, peer: modest_weight(weights)}
    first = max((assigned.round for assigned in shares.assignments), default=0) + 1
    numbers = range(first, first + rounds)
    return _assign_rounds(rules, members, weights, shares.lent_streams, shares.assignments, numbers)


def _assign_rounds(
    rules: AssignmentRules,
    members: Membership,
    weights: Mapping[PeerId, MemberWeight],
    lent_streams: Iterable[LentStream],
    assignments: Sequence[Assignment],
    numbers: Iterable[int],
) -> Iterator[Assignment]:
    """Yield the assignments of the rounds with these `numbers`, which follow the assignments in
    `assignments`. `lent_streams`: the multi-round assignments that are open before them."""
    under_way, before = list(lent_streams), assignments[-1] if assignments else None
    for number in numbers:
        busy = {work.peer for work in under_way if work.due >= number}
        before = made = assign(rules, members, weights, busy, before, number)
        under_way += made.lent_streams
        yield made


class ShareHistory(Restorable):
    """Weights and assignments before each round; extended by one thread."""

    STATE = fields(_length=of(int), _kept=table(of(int), apart(of(RoundShares))))

    def __init__(self, rules: AssignmentRules, first: Membership, overlap: bool) -> None:
        self._rules = rules
        self._overlap = overlap
        self._length = 1
        self._kept = {0: first_shares(first)}

    def __len__(self) -> int:
        return self._length

    def follow(self, record: Record, members: Membership) -> UntrainedWork:
        """Process the last `record`, which must have been checked. Returns what it leaves untrained."""
        shares, lost = self._after(self._kept[self._length - 1], record, members)
        self._kept[self._length] = shares
        old = self._length - _SPACING
        if old % _SPACING:
            self._kept.pop(old, None)
        self._length += 1
        return lost

    def at(
        self, round: int, records: Callable[[int], Record], members: Callable[[int], Membership]
    ) -> RoundShares:
        """Return the state before a round, at most the next one. `records` and `members` cover all
        rounds."""
        first = round
        while first not in self._kept:
            first -= 1
        shares = self._kept[first]
        for number in range(first, round):
            shares, _ = self._after(shares, records(number), members(number + 1))
        return shares

    def before(
        self, length: int, records: Callable[[int], Record], members: Callable[[int], Membership]
    ) -> ShareHistory:
        """Return a history with the states before rounds 0 … `length` - 1."""
        copy = ShareHistory(self._rules, members(0), self._overlap)
        copy._length = length
        # Copied in one step: another thread may extend it.
        kept = list(self._kept.items())
        copy._kept = {round_: shares for round_, shares in kept if round_ < length}
        copy._kept[length - 1] = self.at(length - 1, records, members)
        return copy

    def state(self) -> list[Any]:
        # Of the latest states only the last: the others are recomputed from one of `_SPACING` rounds.
        last = self._length - 1
        kept = {at: self._kept[at] for at in self._kept if at % _SPACING == 0 or at == last}
        return [self._length, self.STATE["_kept"].pack(kept)]

    def restore(self, state: Any, scope: RestoreScope) -> None:
        super().restore(state, scope)
        if not {0, self._length - 1} <= self._kept.keys():
            raise ValueError("no shares before the first or the next round")

    def _after(
        self, shares: RoundShares, record: Record, members: Membership
    ) -> tuple[RoundShares, UntrainedWork]:
        return next_shares(self._rules, shares, record, members, self._overlap)
