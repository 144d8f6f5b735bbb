"""What a member's share is measured by: a weight that follows what it says, and what came of it.

A member states its capacity with each update: how many sequences it could train in a day. Its weight
follows that slowly upwards and at once downwards, and is halved whenever an update that was due does not
count; but not the first time, where a third of the round's updates are missing at once. So it is a
function of the chain: all members have the same weights without a word about them, and a claim that its
member can't live up to makes the share smaller.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ...crypto.identity import PeerId
from ..wire.messages import Record

# With each update that counts, up to what is stated: from nothing to a share sixteen times as large
# takes seven of them. A device that was asleep is back soon, and a false claim costs a round at most
# half as long again.
_GROWTH = 2
# Above half of the weight with which an update last came late: a sixteenth of what there is. A claim of
# too much then costs a late update in a dozen, rather than every third.
_CAREFUL_GROWTH = 16
# Nobody shrinks by being late below what comes to a lane in so many rounds, where the others are as the
# median: it is with that lane that a member shows that it is back, and what it can do.
_FLOOR_ROUNDS = 64
# Nor does anybody grow beyond so many times what all would have together if they were as the median.
# Nobody has more than a part of the lanes anyway; but a claim that grew for ever would have to be halved
# for as long before anybody noticed.
_MOST = 2
# A newcomer begins with this part of the median: nothing was seen of it.
_MODEST = 4

Why = Literal["", "new", "late", "careful", "growing"]
"""Why a weight is not what its member states: nothing was counted yet; the last update that was due did
not count; one did not a while ago; it grows step by step."""


@dataclass(frozen=True, slots=True)
class Weight:
    """The weight of one member, in the unit of capacities. 0: nobody has stated one yet."""

    value: int = 0
    capacity: int = 0
    """What the member stated last in an update that counts; 0 if it has not."""
    limit: int = 0
    """Half of the weight with which an update came late, above which it grows carefully; 0 if none."""
    missed: int = 0
    """How many updates in a row were due and did not count."""
    spared: bool = False
    """Whether the last one that was due did not count in a round that lacked much (`is_thin`)."""

    @property
    def why(self) -> Why:
        """Why it is less than the capacity."""
        if self.missed:
            return "late"
        if self.value >= self.capacity > 0:
            return ""
        if self.capacity == 0:
            return "new"
        return "careful" if self.limit and self.value >= self.limit else "growing"

    def counted(self, capacity: int, most: int) -> Weight:
        """After an update that counts, with what it stated; 0 says nothing. `most` is a bound."""
        if capacity == 0:
            return Weight(self.value, self.capacity, self.limit)
        value = self.value
        if self.limit and value >= self.limit:
            grown = value + max(1, value // _CAREFUL_GROWTH)
        else:
            grown = value + max(1, value // _GROWTH)
            grown = min(grown, self.limit) if self.limit else grown
        return Weight(min(capacity, grown, most), capacity, self.limit)

    def late(self, floor: int) -> Weight:
        """After an update that was due and did not count."""
        value = max(min(self.value, floor), self.value // 2)
        # Of a row of them the first: what comes after it says nothing of how much is too much.
        limit = self.limit if self.missed else self.value // 2
        return Weight(value, self.capacity, limit, self.missed + 1)

    def missed_in_thin_round(self, floor: int) -> Weight:
        """After an update that was due and did not count in a round that lacked much: the first time,
        that was hardly up to its member."""
        if self.spared or self.missed:
            return self.late(floor)
        return replace(self, spared=True)


def is_thin(due: Collection[PeerId], counted: Collection[PeerId]) -> bool:
    """Whether a third of the updates that were due, and more than one, do not count: it was the network,
    or a leader that left them out."""
    missing = sum(peer not in counted for peer in due)
    return missing > 1 and 3 * missing >= len(due)


def next_weights(
    weights: Mapping[PeerId, Weight],
    due: Collection[PeerId],
    record: Record,
    members: Iterable[PeerId],
    lanes: int,
) -> Mapping[PeerId, Weight]:
    """The weights after a record in whose round updates of these were `due`; `members` are those of the
    next round, in which there are so many `lanes`."""
    stated = {entry.peer: entry.capacity for entry in record.updates}
    if not any(weight.value for weight in weights.values()):
        # The first capacities that are stated set the scale for everybody.
        first = _lower_median([capacity for capacity in stated.values() if capacity])
        weights = dict.fromkeys(weights, Weight(first))
    median = _lower_median([weight.value for weight in weights.values()])
    together = median * len(weights)
    floor, most = max(1, together // (_FLOOR_ROUNDS * lanes)), _MOST * together
    after: dict[PeerId, Weight] = {}
    thin = is_thin(due, stated)
    for peer in members:
        weight = weights.get(peer)
        if weight is None:
            after[peer] = modest_weight(weights)
        elif peer in stated:
            after[peer] = weight.counted(stated[peer], most)
        elif peer in due and median:
            after[peer] = weight.missed_in_thin_round(floor) if thin else weight.late(floor)
        else:
            after[peer] = weight
    return weights if after == weights else after


def modest_weight(weights: Mapping[PeerId, Weight]) -> Weight:
    """What a newcomer would begin with."""
    median = _lower_median([weight.value for weight in weights.values()])
    return Weight(max(1, median // _MODEST) if median else 0)


def _lower_median(values: list[int]) -> int:
    """0 of none. Below the middle, so that fewer than half cannot raise it by what they say."""
    return sorted(values)[(len(values) - 1) // 2] if values else 0
