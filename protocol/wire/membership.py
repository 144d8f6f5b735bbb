"""Who is a member in a round, and how many of them make a quorum.

The membership of round r+1 follows from that of round r and the record of round r alone, so the chain
of records tells it. Peers are kept sorted: their order is the order of mask bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


def quorum(model: FaultModel, members: int) -> int:
    """The least number of ballots that decides among `members`: > 2n/3, or > n/2."""
    return 2 * members // 3 + 1 if model == "byzantine" else members // 2 + 1


def most_liars(model: FaultModel, members: int) -> int:
    """How many of `members` may lie: fewer than a third, or none."""
    return (members - 1) // 3 if model == "byzantine" else 0


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

    def leaders(self, swarm: bytes, round: int) -> tuple[PeerId, ...]:
        """The leaders of slots 1, 2, 3 … of a round (then again from the first).

        The members stand in a circle, ordered by hash, and take turns. Nothing in it is up to who
        proposes: a record that has a say in who leads next is varied until it names its maker again.
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


def founding(founder: PeerId) -> Membership:
    """The membership of round 0: the manifest's founder."""
    return Membership(since={founder: 0})
