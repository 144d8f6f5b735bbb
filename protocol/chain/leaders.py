"""Leader schedule: which member's proposal may be voted for in which slot of a round.

If every member has one vote, members lead in an order that is drawn for each round. Otherwise odd slots
are led by members with votes, drawn in proportion to their votes: a crowd of identities that do no work
would otherwise lead nearly all slots and waste them. Even slots go through the order of all members, so
that members without votes can propose when all others are gone. The proposer has no influence on the
schedule.

Nor has anybody that leaves and comes back: a member that is away gives up the slots that it would have
led, and the order of the others stays (`util/draws`). When members stood in a circle or on a line, liars
with a third of the votes led up to 95 % of the rounds by having some of them leave and return.

A record names the slot in which it was first proposed, so the chain shows whose slots were skipped.
Their leaders were away or too slow, or proposed a record that left out updates, for which no honest
member votes. A member whose slots were skipped twice in a row is *passed over*: it leads none of the
first slots for as many rounds as there are members, and after each further skipped slot for twice as
many, up to a bound. Leading a slot to a record clears this. A member that has just joined is passed over
for as many rounds as there are members, too: a new identity is soon found that leads the next round. At
most a third of the members are passed over at once, those with the most skipped slots and then those
that joined last: so most leaders are honest, whatever slots byzantine members manage to have skipped,
and a period in which no leader succeeds costs no member more than the others. Once all others have led a
slot of the round, members that are passed over lead again: they may be the last ones present.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ...crypto.identity import PeerId
from ..util.draws import draw, ranked
from ..wire.membership import Membership, Votes
from ..wire.messages import Record
from ..wire.saved_state import Restorable, apart, fields, of, runs
from .chain_index import ChainView

# Number of skipped slots in a row after which a member is not passed over yet: they may be chance.
_MAY_BE_SKIPPED = 1
# A member is passed over for at most 2 to this power times as many rounds as there are members.
_MOST_DOUBLINGS = 3
# At most one member in this many is passed over.
_MOST_PASSED_OVER = 3


class Leaders:
    """Leaders of the slots of one round."""

    def __init__(
        self,
        swarm: bytes,
        round: int,
        membership: Membership,
        votes: Votes,
        passed_over: Collection[PeerId] = (),
    ) -> None:
        self._seed = swarm + round.to_bytes(8, "big")
        self._order = ranked(membership.peers, self._seed)
        self._first = [peer for peer in self._order if peer not in passed_over]
        self._votes = votes
        self._drawn: dict[int, PeerId] = {}
        self.passed_over = frozenset(passed_over)
        """Members that lead none of the first slots."""

    def __getitem__(self, slot: int) -> PeerId:
        if self._votes.equal:
            index = slot - 1
        elif slot % 2:
            if slot not in self._drawn:
                self._drawn[slot] = self._draw(slot)
            return self._drawn[slot]
        else:
            index = slot // 2 - 1
        if index < len(self._first):
            return self._first[index]
        return self._order[index % len(self._order)]

    def _draw(self, slot: int) -> PeerId:
        """Return the member that leads a slot drawn by votes.

        A record that gives a member one vote more or less changes who is drawn in one case of as many as
        there are votes. Otherwise the leader would try which audits to include.
        """
        votes, seed = self._votes.by_peer, self._seed + slot.to_bytes(8, "big")
        first: PeerId | None = None
        if slot <= 2 * len(self._first):
            first = draw({p: v for p, v in votes.items() if p not in self.passed_over}, seed)
        leader = first or draw(votes, seed)
        assert leader is not None, "votes that differ are positive"
        return leader


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """Skipped slots of one leader."""

    skipped: int
    """Slots skipped in a row."""
    back: int = 0
    """The first round in which it is no longer passed over."""

    def skipped_again(self, round: int, members: int) -> LeaderRecord:
        """Return the state after one more skipped slot, in a round with this many members."""
        skipped, excess = self.skipped + 1, self.skipped - _MAY_BE_SKIPPED
        if excess < 0:
            return LeaderRecord(skipped, self.back)
        return LeaderRecord(skipped, round + 1 + (members << min(excess, _MOST_DOUBLINGS)))


class LeaderHistory(Restorable):
    """Skipped slots of all leaders before each round from 0 to the next; extended by one thread."""

    STATE = fields(_rounds=runs(apart(of(Mapping[PeerId, LeaderRecord])), 1))

    def __init__(
        self, chain: ChainView, rounds: Iterable[Mapping[PeerId, LeaderRecord]] = ({},)
    ) -> None:
        self._chain = chain
        # Most rounds share one mapping.
        self._rounds = list(rounds)

    def passed_over(self, round: int) -> frozenset[PeerId]:
        """Return the members that lead none of the first slots of a round."""
        members = self._chain.membership(round)
        skipped = {
            peer: lead.skipped
            for peer, lead in self._rounds[round].items()
            if lead.back > round and peer in members
        }
        joined = {
            peer: since for peer, since in members.since.items() if since > round - len(members)
        }
        if not skipped and not joined:
            return frozenset()
        worst = sorted(
            skipped.keys() | joined.keys(),
            key=lambda peer: (-skipped.get(peer, 0), -joined.get(peer, 0), peer),
        )
        return frozenset(worst[: (len(members) - 1) // _MOST_PASSED_OVER])

    def leaders(self, round: int) -> Leaders:
        """Return the leaders of a round's slots, at most the next round."""
        chain = self._chain
        return Leaders(
            *(chain.manifest.swarm, round, chain.membership(round), chain.votes(round)),
            self.passed_over(round),
        )

    def follow(self, record: Record) -> None:
        """Process the last `record`, which must have been checked."""
        members = self._chain.membership(record.round)
        after = self._chain.membership(record.round + 1)
        known = self._rounds[-1]
        leads = {peer: lead for peer, lead in known.items() if peer in after}
        # Round 0 has one member, and none of its slots is skipped while it gathers others.
        if record.round > 0 and (record.slot > 1 or leads):
            leaders = self.leaders(record.round)
            # After this many slots every member has led one.
            skipped = range(1, min(record.slot, 2 * len(members) + 1))
            for peer in dict.fromkeys(leaders[slot] for slot in skipped):
                if peer in after:
                    leads[peer] = leads.get(peer, LeaderRecord(0)).skipped_again(
                        record.round, len(members)
                    )
            leads.pop(leaders[record.slot], None)
        self._rounds.append(known if leads == known else leads)

    def before(self, length: int, chain: ChainView) -> LeaderHistory:
        """Return the state after the first `length` records, as an index of `chain`."""
        return LeaderHistory(chain, self._rounds[: length + 1])
