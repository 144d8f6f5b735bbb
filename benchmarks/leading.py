"""Records of hostile leaders: which updates they name, and whether the others vote for them.

Leaders are drawn slot by slot. An honest leader names all updates that it holds once its deadline for
updates is over. Hostile members act as one: they vote for each other's records alone, and a hostile
leader leaves out as many honest updates as it can without losing the votes that it needs. Whether a
member votes follows from the program's own rule (`protocol/member/completeness.py`); without the rule
(`asked` is false) members vote for any record, as they did before there was one.

Times are parts of the deadline for updates. By its definition six of ten updates are there after half
of it; a member's pace, a round's delay and the way between two members vary around that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from distro_node.crypto.hashing import ContentId, content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.member.completeness import judge_completeness
from distro_node.protocol.member.update_collection import RoundUpdates
from distro_node.protocol.wire.membership import Votes, quorum
from distro_node.protocol.wire.messages import Announcement, Record, RecordId, UpdateEntry

# Spread (of the logarithm) of members' paces, of one member's rounds, and of ways between members.
_PACES, _ROUNDS, _WAYS = 0.2, 0.25, 0.1
# A slot takes about this part of the deadline.
_SLOT = 0.25
_SIGNATURE = bytes(64)
_FINGERPRINT = 1


@dataclass(frozen=True)
class Named:
    """What became the record of a round."""

    peers: frozenset[PeerId]
    """The members whose update it names."""
    hostile: bool
    """Whether a hostile member led its slot."""
    slot: int


class Leading:
    """The leaders and voters of one swarm, each with one vote."""

    def __init__(
        self,
        members: Sequence[PeerId],
        hostile: Collection[PeerId],
        chance: np.random.Generator,
        *,
        asked: bool = True,
    ) -> None:
        self._members = list(members)
        self._hostile = frozenset(hostile)
        self._chance = chance
        self._asked = asked
        self._paces = {
            peer: float(pace)
            for peer, pace in zip(members, _spread(chance, _PACES, len(members)), strict=True)
        }

    def record(self, number: int) -> Named:
        """Return the record that a round is decided with."""
        held = self._arrivals()
        order = [self._members[i] for i in self._chance.permutation(len(self._members))]
        for slot in range(1, 4 * len(order)):
            leader = order[(slot - 1) % len(order)]
            proposed = 1.0 + _SLOT * (slot - 1)
            if leader in self._hostile:
                named = self._least(number, slot, proposed, held)
            else:
                named = {peer for peer, at in held[leader].items() if at <= proposed}
            if named and self._wins(number, slot, proposed, held, named, leader):
                return Named(frozenset(named), leader in self._hostile, slot)
        raise RuntimeError(f"round {number} is never decided")

    def _arrivals(self) -> dict[PeerId, dict[PeerId, float]]:
        """Return when each honest member holds each update. The hostile members' are there at once."""
        honest = [peer for peer in self._members if peer not in self._hostile]
        ready = self._chance.permutation(_spread(self._chance, _ROUNDS, len(honest)))
        times = {p: self._paces[p] * float(t) for p, t in zip(honest, ready, strict=True)}
        # Six of ten are there after half of the deadline.
        scale = 0.5 / float(np.quantile(list(times.values()), 0.6))
        return {
            voter: {
                author: 0.0
                if author in self._hostile
                else scale * times[author] * float(_spread(self._chance, _WAYS, 1)[0])
                for author in self._members
            }
            for voter in honest
        }

    def _least(
        self, number: int, slot: int, proposed: float, held: dict[PeerId, dict[PeerId, float]]
    ) -> set[PeerId]:
        """Return the fewest updates, the hostile ones among them, for which a quorum votes; none if no
        record of a hostile leader wins."""
        named, leader = set(self._members), min(self._hostile)
        late = sorted(held, key=lambda author: -sum(held[voter][author] for voter in held))
        for author in late:
            fewer = named - {author}
            if self._wins(number, slot, proposed, held, fewer, leader):
                named = fewer
        return named if self._wins(number, slot, proposed, held, named, leader) else set()

    def _wins(
        self,
        number: int,
        slot: int,
        proposed: float,
        held: dict[PeerId, dict[PeerId, float]],
        named: set[PeerId],
        leader: PeerId,
    ) -> bool:
        record = _record(number, slot, named)
        accomplices = len(self._hostile) if leader in self._hostile else 0
        votes = accomplices + sum(
            voter == leader or self._accepts(record, slot, proposed, voter, held[voter])
            for voter in held
        )
        return votes >= quorum("byzantine", len(self._members))

    def _accepts(
        self, record: Record, slot: int, proposed: float, voter: PeerId, held: dict[PeerId, float]
    ) -> bool:
        if not self._asked:
            return True
        collection = RoundUpdates(Votes(dict.fromkeys(self._members, 1), equal=True))
        for author, at in held.items():
            said = _announcement(record.round, author)
            collection.announce(author, said, _SIGNATURE, at)
            if at <= proposed:
                collection.held(said.update, at)
        judged = judge_completeness(
            record,
            slot,
            collection,
            me=voter,
            members=len(self._members),
            due=frozenset(self._members),
            model="byzantine",
            start=0.0,
            collect=1.0,
            proposed=proposed,
            ready=True,
            pace_known=True,
        )
        return judged == "complete"


def _spread(chance: np.random.Generator, deviation: float, count: int) -> np.ndarray:
    return np.exp(chance.normal(0.0, deviation, count))


def _update_of(number: int, author: PeerId) -> ContentId:
    return content_id(b"%d " % number + author)


def _announcement(number: int, author: PeerId) -> Announcement:
    parent = RecordId(content_id(b"%d" % number))
    return Announcement(number, parent, _update_of(number, author), 1, 1, 1.0, _FINGERPRINT)


def _record(number: int, slot: int, named: Collection[PeerId]) -> Record:
    return Record(
        round=number,
        parent=RecordId(content_id(b"%d" % number)),
        fingerprint=_FINGERPRINT,
        updates=tuple(
            UpdateEntry(peer, _update_of(number, peer), 1, 1, 1.0, _SIGNATURE)
            for peer in sorted(named)
        ),
        admitted=(),
        departed=(),
        snapshot=None,
        slot=slot,
    )
