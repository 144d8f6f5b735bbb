"""Committees: the draw, which aggregates count, and penalties for deviating aggregators.

With committees, all updates of a section of the model pass through its *committee*: three or more
aggregators that receive the same sign votes and so compute the same aggregate, bit for bit. An
aggregate counts if at least two aggregators announce it (one, if it is alone in the swarm) and none
announces another. So a single byzantine aggregator can suppress its committee's aggregate for a step
but cannot forge one: this takes two byzantine aggregators and no honest announcement, because the
committee has no honest member or a leader leaves it out (`member/completeness`). If one aggregator of a
committee is left in the swarm, honest or not, its section stays unchanged until the next epoch.

Committees are drawn for each *epoch* of a fixed number of steps, by the randomness beacon. An
aggregator that deviated from the majority of its committee is *penalised*: it is not drawn for two
epochs, the next time for four, and so on. Two byzantine aggregators in a committee with one honest one
can get the honest one penalised; but if most members are honest, byzantine members are penalised many
times as often, and are soon hardly ever drawn. Each epoch served without a penalty removes one.

All of this follows from the records, so all members know the same committees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ...crypto.hashing import ContentId
from ...crypto.identity import PeerId
from ..util.draws import ranked
from .sections import committee_count

Committee = tuple[PeerId, ...]
"""The committee of one section."""

# A new member is not drawn for this many whole epochs.
_NEW_MEMBER_EPOCHS = 4
# A member is excluded for at most 2 to this power epochs.
_MAX_PENALTIES = 8


@dataclass(frozen=True, slots=True)
class AggregatorStanding:
    """Penalties of a member, and the epoch from which it may be drawn."""

    penalties: int = 0
    back: int = 0
    """The first epoch in which it may be drawn again."""

    def penalised(self, epoch: int) -> AggregatorStanding:
        """Return the state after an epoch in which it deviated from the majority of its committee."""
        penalties = min(self.penalties + 1, _MAX_PENALTIES)
        return AggregatorStanding(penalties, epoch + 1 + (1 << penalties))

    def newly_admitted(self, epoch: int) -> AggregatorStanding:
        """Return the state after an admission in an epoch, the first or a later one. New members wait,
        because identities cost nothing: a penalised member must not return sooner under another one."""
        return AggregatorStanding(self.penalties, max(self.back, epoch + 1 + _NEW_MEMBER_EPOCHS))

    def served(self) -> AggregatorStanding:
        """Return the state after an epoch in which it aggregated without a penalty."""
        return AggregatorStanding(max(0, self.penalties - 1), self.back)


def draw_committees(
    members: Iterable[PeerId], *, size: int, most: int, seed: bytes
) -> tuple[Committee, ...]:
    """Return the committees of an epoch: as many as the members allow at `size` each, from one to
    `most`. Remaining members join one of them; the sizes differ by at most one."""
    order = ranked(members, seed)
    count = committee_count(len(order), size, most)
    return tuple(tuple(order[first::count]) for first in range(count))


def may_aggregate(
    members: Collection[PeerId], standings: Mapping[PeerId, AggregatorStanding], epoch: int
) -> list[PeerId]:
    """Return the members that may be drawn for an epoch: those that are not excluded, or all members if
    more than half are excluded."""
    able = [peer for peer in members if standings.get(peer, AggregatorStanding()).back <= epoch]
    return able if 2 * len(able) >= len(members) else list(members)


def agreed_aggregate(
    committee: Committee, announced: Mapping[PeerId, ContentId], present: Collection[PeerId]
) -> ContentId | None:
    """Return the aggregate of a committee that counts; None if none does. `announced`: the announced
    aggregate of each member with one in the record; `present`: the members of the round."""
    aggregates = [announced[peer] for peer in committee if peer in announced]
    needed = min(2, len(present))
    return (
        aggregates[0]
        if aggregates and len(aggregates) >= needed and len({*aggregates}) == 1
        else None
    )


def dissenters(committee: Committee, announced: Mapping[PeerId, ContentId]) -> frozenset[PeerId]:
    """Return the members of a committee that deviated from its most frequent aggregate; if two or more
    are equally frequent, all members that announced one. `announced` as for `agreed_aggregate`."""
    aggregates = {peer: announced[peer] for peer in committee if peer in announced}
    ranked = Counter(aggregates.values()).most_common(2)
    if len(ranked) < 2:
        return frozenset()
    (first, most), (_, next_most) = ranked
    return frozenset(
        peer for peer, aggregate in aggregates.items() if aggregate != first or most == next_most
    )
