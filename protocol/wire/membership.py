"""Membership of a round, its votes, and the quorum.

The membership of round r+1 follows from that of round r and the record of round r alone, so the chain of
records determines it. Peers are kept sorted, because a mask has its bits in their order.

Every member has one vote, except in swarms with audits: there the chain determines the votes, and
newcomers have none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from ...crypto.identity import PeerId
from .errors import ProtocolError
from .messages import Record

FaultModel = Literal["crash", "byzantine"]

REQUEST_WINDOW = 64
"""Number of rounds for which a signed join request may still be put into a record; an older one is a
replay."""

LEAVE_WINDOW = 8
"""The same for a leave. An honest one is recorded in the next round or two; later it could only remove a
member that has come back."""

MAX_EXPELLED = 4096
"""Number of expelled peers that are remembered. The oldest are forgotten first. This is harmless: in an
open swarm a new identity is free anyway, and into a closed one nobody invites thousands of byzantine
members."""


def quorum(model: FaultModel, votes: int) -> int:
    """Return the minimum number of votes that decides: > 2n/3, or > n/2."""
    return 2 * votes // 3 + 1 if model == "byzantine" else votes // 2 + 1


def max_byzantine_votes(model: FaultModel, votes: int) -> int:
    """Return the maximum number of votes of byzantine members: fewer than a third, or none."""
    return (votes - 1) // 3 if model == "byzantine" else 0


@dataclass(frozen=True)
class MembershipChange:
    """Change of the membership by one record."""

    round: int
    departed: tuple[PeerId, ...] = ()
    admitted: tuple[PeerId, ...] = ()
    expelled: tuple[PeerId, ...] = ()

    @classmethod
    def of(cls, record: Record) -> MembershipChange:
        """Return the change by a record."""
        parts = record.departed, record.admitted, record.evidence
        return cls(record.round, *(tuple(entry.peer for entry in part) for part in parts))


@dataclass(frozen=True)
class Membership:
    """Members of a round, each with the round whose record admitted it.

    `gone` holds the members that departed within the last `REQUEST_WINDOW` rounds, and when: a join
    request signed before that is a replay. `expelled` holds the members that contradicted themselves,
    with the round whose record proves it; such a peer is never admitted again.
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
        """Return a bit mask that marks `peers`; non-members are left out."""
        bits = sum(1 << self._index[peer] for peer in set(peers) if peer in self._index)
        return bits.to_bytes(self._mask_length, "little")

    def bits(self, mask: bytes) -> int:
        """Return the mask as an integer. Raises `ProtocolError` if it does not fit this membership."""
        value = int.from_bytes(mask, "little")
        if len(mask) != self._mask_length or value >> len(self):
            raise ProtocolError("invalid", "a mask does not fit the membership")
        return value

    def bit(self, peer: PeerId) -> int:
        """Return the mask bit of one member."""
        return 1 << self._index[peer]

    def marked(self, bits: int) -> list[PeerId]:
        """Return the members that the mask `bits` marks, sorted."""
        return [peer for index, peer in enumerate(self.peers) if bits >> index & 1]

    @property
    def _mask_length(self) -> int:
        return max(1, (len(self) + 7) // 8)

    @cached_property
    def one_each(self) -> Votes:
        """One vote for each member. Cached, since it is read in every round."""
        return Votes(dict.fromkeys(self.peers, 1), equal=True)

    def changed(self, change: MembershipChange) -> Membership:
        """Return the membership after this change, taken from a checked record; the same object if
        nothing changes."""
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
            # All rounds with equal memberships share one object: a ledger holds every round's.
            return self
        return Membership(since=since, gone=gone, expelled=expelled)


@dataclass(frozen=True)
class Votes:
    """Votes of each member of a round; a member not listed has none."""

    by_peer: Mapping[PeerId, int]
    equal: bool = False
    """Whether each member has one vote, so that votes are the number of members."""

    @classmethod
    def one_each(cls, membership: Membership) -> Votes:
        """Return one vote for each member, as in swarms without audits."""
        return membership.one_each

    @classmethod
    def of(cls, votes: Mapping[PeerId, int], membership: Membership) -> Votes:
        """Return those of these votes that members have. If no member has any, the members are heirs and
        get one vote each."""
        held = {peer: votes[peer] for peer in membership.peers if votes.get(peer, 0) > 0}
        return cls(held) if held else membership.one_each

    def __getitem__(self, peer: PeerId) -> int:
        return self.by_peer.get(peer, 0)

    @cached_property
    def total(self) -> int:
        """Sum of all votes."""
        return sum(self.by_peer.values())

    def among(self, peers: Iterable[PeerId]) -> int:
        """Return the sum of these peers' votes."""
        return sum(self.by_peer.get(peer, 0) for peer in peers)

    def held_by(self, peers: Collection[PeerId]) -> Votes:
        """Return the votes of these peers alone, to count a quorum of them; one each if none has any."""
        held = {peer: self.by_peer[peer] for peer in peers if peer in self.by_peer}
        return Votes(held, self.equal) if held else Votes(dict.fromkeys(peers, 1), equal=True)

    def decides_alone(self, peer: PeerId, model: FaultModel) -> bool:
        """Whether the votes of one member are a quorum of all."""
        return self[peer] >= quorum(model, self.total)


def founding(founder: PeerId) -> Membership:
    """Return the membership of round 0: the manifest's founder."""
    return Membership(since={founder: 0})
