"""Who is a member in a round, how many votes each has, and how many votes make a quorum.

The membership of round r+1 follows from that of round r and the record of round r alone, so the chain
of records tells it. Peers are kept sorted: their order is the order of mask bits.

Everybody has one vote, but in swarms whose work is checked: there the chain says who has how many, and
newcomers have none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from ...crypto.hashing import content_id
from ...crypto.identity import PeerId
from .errors import ProtocolError
from .messages import Record

FaultModel = Literal["crash", "byzantine"]

REQUEST_WINDOW = 64
"""Rounds for which a signed join or leave may still be put into a record; older ones are replays."""

LEAVE_WINDOW = 8
"""The same for a leave. It is recorded in the next round or two, and then has no further use but to
count out somebody who came back."""

MAX_EXPELLED = 4096
"""Expelled peers that are remembered. The oldest are forgotten first: where anybody may join, an
identity costs nothing anyway, and elsewhere nobody invites thousands of liars."""


def quorum(model: FaultModel, votes: int) -> int:
    """The least number of votes that decides among so many: > 2n/3, or > n/2."""
    return 2 * votes // 3 + 1 if model == "byzantine" else votes // 2 + 1


def most_liars(model: FaultModel, votes: int) -> int:
    """How many of so many votes liars may have: fewer than a third, or none."""
    return (votes - 1) // 3 if model == "byzantine" else 0


@dataclass(frozen=True)
class Change:
    """What a record changes in the membership."""

    round: int
    departed: tuple[PeerId, ...] = ()
    admitted: tuple[PeerId, ...] = ()
    expelled: tuple[PeerId, ...] = ()

    @classmethod
    def of(cls, record: Record) -> Change:
        """That of a record."""
        parts = record.departed, record.admitted, record.evidence
        return cls(record.round, *(tuple(entry.peer for entry in part) for part in parts))


@dataclass(frozen=True)
class Membership:
    """The members of a round, each with the round in whose record it was admitted.

    `gone` remembers who departed within the last `REQUEST_WINDOW` rounds, and when: a join request
    signed before that is a replay. `expelled` holds who contradicted itself, with the round whose
    record proves it; such a peer is never admitted again.
    """

    since: Mapping[PeerId, int]
    gone: Mapping[PeerId, int] = field(default_factory=dict)
    expelled: Mapping[PeerId, int] = field(default_factory=dict)

    @cached_property
    def peers(self) -> tuple[PeerId, ...]:
        """All members, sorted."""
        return tuple(sorted(self.since))

    @cached_property
    def _index(self) -> dict[PeerId, int]:
        return {peer: index for index, peer in enumerate(self.peers)}

    def __contains__(self, peer: object) -> bool:
        return peer in self.since

    def __len__(self) -> int:
        return len(self.since)

    def mask(self, peers: Iterable[PeerId]) -> bytes:
        """A bit mask that marks `peers`; those that are no members are left out."""
        bits = sum(1 << self._index[peer] for peer in set(peers) if peer in self._index)
        return bits.to_bytes(self._mask_length, "little")

    def bits(self, mask: bytes) -> int:
        """The mask as an integer. Raises `ProtocolError` if it cannot be of this membership."""
        value = int.from_bytes(mask, "little")
        if len(mask) != self._mask_length or value >> len(self):
            raise ProtocolError("invalid", "a mask does not fit the membership")
        return value

    def bit(self, peer: PeerId) -> int:
        """The mask bit of one member."""
        return 1 << self._index[peer]

    def marked(self, bits: int) -> list[PeerId]:
        """The members that the mask `bits` marks, sorted."""
        return [peer for index, peer in enumerate(self.peers) if bits >> index & 1]

    @property
    def _mask_length(self) -> int:
        return max(1, (len(self) + 7) // 8)

    @cached_property
    def one_each(self) -> Votes:
        """One vote for each of them. Kept, since it is asked for in every round."""
        return Votes(dict.fromkeys(self.peers, 1), equal=True)

    def circle(self, swarm: bytes, round: int) -> tuple[PeerId, ...]:
        """The members in a circle, ordered by hash, from the one on whose turn it is in a round.

        Nothing in it is up to who proposes: a record that has a say in who leads next is varied until
        it names its maker again.
        """
        circle = sorted(self.peers, key=lambda peer: content_id(swarm + peer))
        first = round % len(circle)
        return (*circle[first:], *circle[:first])

    def changed(self, change: Change) -> Membership:
        """The membership after the change of a record that has been checked; itself if there is none."""
        since = dict(self.since)
        horizon = change.round - REQUEST_WINDOW
        gone = {peer: round_ for peer, round_ in self.gone.items() if round_ >= horizon}
        for peer in change.departed:
            del since[peer]
            gone[peer] = change.round
        for peer in change.admitted:
            since[peer] = change.round
            gone.pop(peer, None)
        expelled = self.expelled
        if change.expelled:
            expelled = {**expelled, **dict.fromkeys(change.expelled, change.round)}
            for peer in change.expelled:
                since.pop(peer, None)
            for oldest in list(expelled)[:-MAX_EXPELLED]:
                del expelled[oldest]
        if (since, gone, expelled) == (self.since, self.gone, self.expelled):
            # One for all the rounds that it is in force: a ledger has the memberships of all rounds.
            return self
        return Membership(since=since, gone=gone, expelled=expelled)


@dataclass(frozen=True)
class Votes:
    """How many votes each member of a round has. Whoever is not named has none."""

    by_peer: Mapping[PeerId, int]
    equal: bool = False
    """Whether each member has one, so that counting votes is counting heads."""

    @classmethod
    def one_each(cls, membership: Membership) -> Votes:
        """As in swarms whose work is not checked."""
        return membership.one_each

    @classmethod
    def of(cls, votes: Mapping[PeerId, int], membership: Membership) -> Votes:
        """What the members have of these; one each if none of them has any: they are the heirs."""
        held = {peer: votes[peer] for peer in membership.peers if votes.get(peer, 0) > 0}
        return cls(held) if held else membership.one_each

    def __getitem__(self, peer: PeerId) -> int:
        return self.by_peer.get(peer, 0)

    @cached_property
    def total(self) -> int:
        """All of them."""
        return sum(self.by_peer.values())

    def among(self, peers: Iterable[PeerId]) -> int:
        """How many these peers have together."""
        return sum(self.by_peer.get(peer, 0) for peer in peers)

    def held_by(self, peers: Collection[PeerId]) -> Votes:
        """Those of these peers alone, to count a quorum of them; one each if none of them has any."""
        held = {peer: self.by_peer[peer] for peer in peers if peer in self.by_peer}
        return Votes(held, self.equal) if held else Votes(dict.fromkeys(peers, 1), equal=True)

    def decides_alone(self, peer: PeerId, model: FaultModel) -> bool:
        """Whether the votes of one member are a quorum of all."""
        return self[peer] >= quorum(model, self.total)


def founding(founder: PeerId) -> Membership:
    """The membership of round 0: the manifest's founder."""
    return Membership(since={founder: 0})
