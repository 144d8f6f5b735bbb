"""Member weights, which determine shares: they follow the stated capacities and the updates that
counted.

A member states its capacity with each update: how many sequences it could train in a day. Its weight
follows the capacity slowly upwards and at once downwards, and is halved whenever an update that was due
does not count. The first such update is forgiven if a third of the round's updates are missing with it.
So weights are a function of the chain: all members compute the same ones without messages, and a claim
that a member cannot meet makes its share smaller.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ...crypto.identity import PeerId
from ..wire.messages import Record

# With each update that counts, a weight grows by 1 / `_GROWTH` of itself, up to the stated capacity:
# it takes seven such updates to grow sixteenfold. So a device that was asleep is back soon, and a false
# claim makes a round at most half as long again. Up to `_ROUNDS_COUNTED` rounds up to the update count
# as updates if nothing was due in them: a member with a share below one stream is due in few rounds, and
# would otherwise need a hundred rounds for seven updates.
_GROWTH = 2
_ROUNDS_COUNTED = 8
# Above half of the weight at which an update was last late, a weight grows by only
# 1 / `_CAREFUL_GROWTH` of itself, for `_CAREFUL_ROUNDS` rounds, after which it is at that weight again.
# An excessive claim then costs one late update in nine, rather than one in three. With still slower
# growth, a member that is late now and then for other reasons than its weight would lose all of it in
# time.
_CAREFUL_GROWTH = 10
_CAREFUL_ROUNDS = 8
# Late updates shrink a weight to no less than is worth one stream in this many rounds, if all members
# had the median weight. With that stream a member shows that it is back, and states its capacity.
_FLOOR_ROUNDS = 64
# No weight grows beyond this many times the sum that all weights would have at the median. A member's
# streams are bounded anyway, but a weight that had grown without bound would have to be halved many
# times before its share became smaller.
_MOST = 2
# A newcomer begins with this fraction of the median: it has no history.
_MODEST = 4

Why = Literal["", "new", "late", "careful", "growing"]
"""Why a weight is below the stated capacity. "new": no update has counted yet; "late": the last update
that was due did not count; "careful": one did not some rounds ago; "growing": the weight still grows;
empty: it is not below the capacity."""


@dataclass(frozen=True, slots=True)
class MemberWeight:
    """Weight of one member, in the unit of capacities (sequences a day). 0: no member has stated a
    capacity yet."""

    value: int = 0
    capacity: int = 0
    """Capacity stated in the last update that counted; 0 if none was."""
    limit: int = 0
    """Half of the weight at which an update was late; above it growth is slow. 0 if none was late in the
    last rounds."""
    missed: int = 0
    """Consecutive updates that were due and did not count."""
    spared: bool = False
    """Whether the last update that was due did not count in a thin round (`is_thin`)."""
    punctual: int = 0
    """Rounds from the late update that set `limit` to the last one whose update counted."""
    waited: int = 0
    """Consecutive rounds in which no update was due, at most `_ROUNDS_COUNTED` - 1."""

    @property
    def why(self) -> Why:
        """Why the weight is below the capacity."""
        if self.missed:
            return "late"
        if self.value >= self.capacity > 0:
            return ""
        if self.capacity == 0:
            return "new"
        return "careful" if self.limit and self.value >= self.limit else "growing"

    def counted(self, capacity: int, most: int) -> MemberWeight:
        """Return the weight after an update that counts. `capacity`: what the update stated, 0 if
        nothing; `most`: upper bound of the weight."""
        if capacity == 0:
            return replace(self, missed=0, spared=False, waited=0)
        if self.missed and self.value < self.limit:
            # On time again after late updates in a row: return to half of the weight that was too much.
            return MemberWeight(min(capacity, self.limit, most), capacity, self.limit)
        value, limit, punctual = self.value, self.limit, self.punctual
        for _ in range(self.waited + 1):
            if limit and value >= limit:
                value += max(1, value // _CAREFUL_GROWTH)
            else:
                grown = value + max(1, value // _GROWTH)
                value = min(grown, limit) if limit else grown
            punctual += 1
            if punctual >= _CAREFUL_ROUNDS:
                limit = 0
        value = min(capacity, value, most)
        return MemberWeight(value, capacity, limit, punctual=punctual if limit else 0)

    def idle(self) -> MemberWeight:
        """Return the weight after a round in which no update was due."""
        return replace(self, waited=min(self.waited + 1, _ROUNDS_COUNTED - 1))

    def late(self, floor: int) -> MemberWeight:
        """Return the weight after an update that was due and did not count."""
        value = max(min(self.value, floor), self.value // 2)
        # Only the first of several late updates in a row shows which weight is too much.
        limit = self.limit if self.missed else self.value // 2
        return MemberWeight(value, self.capacity, limit, self.missed + 1)

    def missed_small_round(self, floor: int) -> MemberWeight:
        """Return the weight after an update that was due and did not count in a thin round (`is_thin`).
        It stays the same the first time, which is hardly the member's fault."""
        if self.spared or self.missed:
            return self.late(floor)
        return replace(self, spared=True)


def is_thin(due: Collection[PeerId], counted: Collection[PeerId]) -> bool:
    """Whether at least a third of the updates that were due, and more than one, do not count. The likely
    cause is then the network, or a leader that left them out."""
    missing = sum(peer not in counted for peer in due)
    return missing > 1 and 3 * missing >= len(due)


def next_weights(
    weights: Mapping[PeerId, MemberWeight],
    due: Collection[PeerId],
    record: Record,
    members: Iterable[PeerId],
    streams: int,
) -> Mapping[PeerId, MemberWeight]:
    """Return the weights after a record in whose round updates of these members were `due`. `members`:
    the members of the next round, which has `streams` streams."""
    stated = {entry.peer: entry.capacity for entry in record.updates}
    if not any(weight.value for weight in weights.values()):
        # The first stated capacities set the scale for all members.
        first = _lower_median([capacity for capacity in stated.values() if capacity])
        weights = dict.fromkeys(weights, MemberWeight(first))
    median = _lower_median([weight.value for weight in weights.values()])
    together = median * len(weights)
    floor, most = max(1, together // (_FLOOR_ROUNDS * streams)), _MOST * together
    after: dict[PeerId, MemberWeight] = {}
    thin = is_thin(due, stated)
    for peer in members:
        weight = weights.get(peer)
        if weight is None:
            after[peer] = modest_weight(weights)
        elif peer in stated:
            after[peer] = weight.counted(stated[peer], most)
        elif peer in due and median:
            after[peer] = weight.missed_small_round(floor) if thin else weight.late(floor)
        else:
            after[peer] = weight.idle() if median else weight
    return weights if after == weights else after


def modest_weight(weights: Mapping[PeerId, MemberWeight]) -> MemberWeight:
    """Return the initial weight of a newcomer."""
    median = _lower_median([weight.value for weight in weights.values()])
    return MemberWeight(max(1, median // _MODEST) if median else 0)


def _lower_median(values: list[int]) -> int:
    """Return the lower median, which fewer than half of the values cannot raise; 0 if there are none."""
    return sorted(values)[(len(values) - 1) // 2] if values else 0
