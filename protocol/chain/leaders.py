"""Who leads which slot of a round: the one whose proposal may be voted for there.

Where everybody has one vote, the members take turns in a circle. Elsewhere odd slots are led by who has
votes, as often as it has votes: a crowd without work would otherwise lead nearly all slots and waste
them. Even slots belong to the circle of all members, so that those without votes can propose when all
others are gone. Nothing of it is up to who proposes.

A record says in which slot it was proposed first, so the chain shows whose slots were skipped: a leader
that was away, too slow, or left updates out, which no honest member votes for. A member whose slots were
skipped twice in a row is *passed over*: it leads none of the first slots for as many rounds as there are
members, and after each further one for twice as many, up to a bound. A slot that it leads to a record
makes it good. No more than a third of the members are passed over at once, those with the most skipped
slots: so most leaders are honest, whatever liars manage to have skipped, and in a time when nobody gets
a record through nobody is any worse for it. Once all others have led a slot of the round, those who are
passed over lead again: they may be the last who are there.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from ...crypto.hashing import CONTENT_ID_BYTES, content_id
from ...crypto.identity import PeerId
from ..wire.membership import Membership, Votes
from ..wire.messages import Record

# So many slots in a row that were skipped may be chance.
_MAY_BE_SKIPPED = 1
# Nobody is passed over for longer than so many times as many rounds as there are members, two to this.
_MOST_DOUBLINGS = 3
# One of so many members is passed over at most.
_MOST_PASSED_OVER = 3


class Leaders:
    """The leaders of one round's slots."""

    def __init__(
        self,
        swarm: bytes,
        round: int,
        membership: Membership,
        votes: Votes,
        passed_over: Collection[PeerId] = (),
    ) -> None:
        self._seed = swarm + round.to_bytes(8, "big")
        self._circle = membership.circle(swarm, round)
        self._first = tuple(peer for peer in self._circle if peer not in passed_over)
        self._votes = votes
        self.passed_over = frozenset(passed_over)
        """Who leads none of the first slots."""

    def __getitem__(self, slot: int) -> PeerId:
        if self._votes.equal:
            turn = slot - 1
        elif slot % 2:
            return self._drawn(slot)
        else:
            turn = slot // 2 - 1
        if turn < len(self._first):
            return self._first[turn]
        return self._circle[turn % len(self._circle)]

    def _drawn(self, slot: int) -> PeerId:
        """Where the slot's point falls on the line of all votes.

        A fraction of the line, not a remainder: a record that gives somebody one vote more or less moves
        bounds by as much, and does not draw anew, or its maker would try which of its looks to put in.
        """
        early = slot <= 2 * len(self._first)
        voters, bounds = (self._first_line if early else None) or self._line
        drawn = int.from_bytes(content_id(self._seed + slot.to_bytes(8, "big")), "big")
        point = drawn * bounds[-1] >> 8 * CONTENT_ID_BYTES
        return voters[bisect_right(bounds, point)]

    @cached_property
    def _line(self) -> tuple[list[PeerId], list[int]]:
        """Who has votes, and where the votes of each end. In another order in each round: nobody makes
        itself an identity that stands where the points of many rounds fall."""
        return self._line_of(self._votes.by_peer)

    @cached_property
    def _first_line(self) -> tuple[list[PeerId], list[int]] | None:
        """The same of those who are not passed over; None if none of them has votes."""
        voters = [peer for peer in self._votes.by_peer if peer not in self.passed_over]
        return self._line_of(voters) if voters else None

    def _line_of(self, peers: Collection[PeerId]) -> tuple[list[PeerId], list[int]]:
        voters = sorted(peers, key=lambda peer: content_id(self._seed + peer))
        return voters, list(itertools.accumulate(self._votes[peer] for peer in voters))


@dataclass(frozen=True, slots=True)
class Lead:
    """What became of the slots that a member led."""

    skipped: int
    """How many in a row were skipped."""
    back: int = 0
    """The first round in which it leads again like others."""

    def skipped_again(self, round: int, members: int) -> Lead:
        """After one more, in a round with so many members."""
        skipped, over = self.skipped + 1, self.skipped - _MAY_BE_SKIPPED
        if over < 0:
            return Lead(skipped, self.back)
        return Lead(skipped, round + 1 + (members << min(over, _MOST_DOUBLINGS)))


class LeadsByRound:
    """What became of the members' slots, before each round from 0 to the next; to be grown by one."""

    def __init__(self, swarm: bytes) -> None:
        self._swarm = swarm
        # Those of most rounds are the same one.
        self._rounds: list[Mapping[PeerId, Lead]] = [{}]

    def passed_over(self, round: int, members: Membership) -> frozenset[PeerId]:
        """Who leads none of the first slots of a round, which has these members."""
        out = {
            peer: lead
            for peer, lead in self._rounds[round].items()
            if lead.back > round and peer in members
        }
        if not out:
            return frozenset()
        worst = sorted(out, key=lambda peer: (-out[peer].skipped, peer))
        return frozenset(worst[: (len(members) - 1) // _MOST_PASSED_OVER])

    def leaders(self, round: int, members: Membership, votes: Votes) -> Leaders:
        """The leaders of a round, which has these members and votes."""
        return Leaders(self._swarm, round, members, votes, self.passed_over(round, members))

    def follow(self, record: Record, members: Membership, votes: Votes, after: Membership) -> None:
        """Add what is after the last `record`, which was checked, with the members and votes of its
        round and the members `after` it."""
        known = self._rounds[-1]
        leads = {peer: lead for peer, lead in known.items() if peer in after}
        # Round 0 has one member, and as it gathers others nothing of it is skipped.
        if record.round > 0 and (record.slot > 1 or leads):
            leaders = self.leaders(record.round, members, votes)
            # Behind as many slots everybody has led one.
            skipped = range(1, min(record.slot, 2 * len(members) + 1))
            for peer in dict.fromkeys(leaders[slot] for slot in skipped):
                if peer in after:
                    leads[peer] = leads.get(peer, Lead(0)).skipped_again(record.round, len(members))
            leads.pop(leaders[record.slot], None)
        self._rounds.append(known if leads == known else leads)

    def before(self, length: int) -> LeadsByRound:
        """Those of the first `length` records."""
        copy = LeadsByRound(self._swarm)
        copy._rounds = self._rounds[: length + 1]
        return copy
