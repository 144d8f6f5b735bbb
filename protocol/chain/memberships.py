"""Memberships of all rounds of a chain, in little memory.

Most rounds do not change the membership, but a byzantine peer can make a chain in which each one does:
with 256 members, 65,536 rounds would take 1.4 GB. So only some of the older memberships are kept, at
even distances, with the changes between them; the others are recomputed on request, which is rare.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, overload

from ...crypto.identity import PeerId
from ..wire.membership import Membership, MembershipChange
from ..wire.messages import Record
from ..wire.saved_state import Restorable, RestoreScope, fields, numbers, of
from .chain_index import ChainView

# Number of changes from one kept older membership to the next. This many of the latest are all kept.
_SPACING = 128


class MembershipHistory(Sequence[Membership], Restorable):
    """Memberships by round, from 0 to the next one; read by several threads, extended by one."""

    STATE = fields(_starts=numbers(None), _changes=of(list[MembershipChange]))

    def __init__(self, first: Membership) -> None:
        """`first` is the membership of round 0."""
        self._length = 1
        # The rounds in which a new membership takes effect, and the changes that made it.
        self._starts = [0]
        self._changes = [MembershipChange(-1)]
        # Kept memberships by their index in `_starts`.
        self._kept = {0: first}
        # The last recomputed memberships, in a row, with the index of the first.
        self._again: tuple[int, list[Membership]] = 0, []

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, round: int) -> Membership: ...
    @overload
    def __getitem__(self, round: slice) -> Sequence[Membership]: ...
    def __getitem__(self, round: int | slice) -> Membership | Sequence[Membership]:
        if isinstance(round, slice):
            return [self[number] for number in range(*round.indices(self._length))]
        number = round + self._length if round < 0 else round
        if not 0 <= number < self._length:
            raise IndexError(f"no membership for round {round}")
        return self._at(bisect_right(self._starts, number) - 1)

    def follow(self, record: Record) -> None:
        """Append the membership after the last `record`, which must have been checked."""
        last, change = self[-1], MembershipChange.of(record)
        new = last.changed(change)
        if new is not last:
            index = len(self._starts)
            self._starts.append(self._length)
            self._changes.append(change)
            self._kept[index] = new
            if (index - _SPACING) % _SPACING:
                self._kept.pop(index - _SPACING, None)
        self._length += 1

    def before(self, length: int, chain: ChainView) -> MembershipHistory:
        """Return the memberships of the first `length` rounds and of the next one."""
        count = bisect_right(self._starts, length)
        copy = MembershipHistory(self._kept[0])
        copy._length = length + 1
        copy._starts, copy._changes = self._starts[:count], self._changes[:count]
        # Copied in one step: another thread may extend it.
        kept = list(self._kept.items())
        copy._kept = {index: membership for index, membership in kept if index < count}
        return copy

    def restore(self, state: Any, scope: RestoreScope) -> None:
        super().restore(state, scope)
        if self._starts[:1] != [0] or len(self._starts) != len(self._changes):
            raise ValueError("changes of the membership without their rounds")
        self._length = scope.length + 1
        membership = self._kept[0]
        for index, change in enumerate(self._changes[1:], 1):
            membership = membership.changed(change)
            if index % _SPACING == 0 or index > len(self._changes) - 1 - _SPACING:
                self._kept[index] = membership

    def _at(self, index: int) -> Membership:
        kept = self._kept.get(index)
        if kept is not None:
            return kept
        first = index - index % _SPACING
        begin, stretch = self._again
        if begin != first or len(stretch) <= index - first:
            stretch = [self._kept[first]]
            for change in self._changes[first + 1 : first + _SPACING]:
                stretch.append(stretch[-1].changed(change))
            self._again = first, stretch
        return stretch[index - first]


class PastMembers(Collection[PeerId], Restorable):
    """All peers that are or were members of a chain."""

    STATE = fields(_admitted=of(dict[PeerId, int]))

    def __init__(self, founder: PeerId, admitted: Mapping[PeerId, int] | None = None) -> None:
        self._founder = founder
        # Each with the round that first admitted it.
        self._admitted = {founder: 0, **(admitted or {})}

    def __len__(self) -> int:
        return len(self._admitted)

    def __iter__(self) -> Iterator[PeerId]:
        return iter(self._admitted)

    def __contains__(self, peer: object) -> bool:
        return peer in self._admitted

    def follow(self, record: Record) -> None:
        """Add the peers that the last `record` admits."""
        for admission in record.admitted:
            self._admitted.setdefault(admission.peer, record.round)

    def before(self, length: int, chain: ChainView) -> PastMembers:
        """Return the members of the first `length` rounds and of the next one."""
        known = list(self._admitted.items())
        return PastMembers(
            self._founder, {peer: round_ for peer, round_ in known if round_ < length}
        )
