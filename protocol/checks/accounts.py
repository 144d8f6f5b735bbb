"""The accounts of a swarm's members: what each has done, how much of it is vouched for, and the votes
that follow.

Updates count from the first round on; votes have to be earned. A member's work waits until somebody with
votes has looked at some of it. A look that passes vouches for all that waits up to the round looked
at: whose checks come rarely is not worse off for it, and who does its work in some rounds alone fails as
often as it does not. A check that failed takes what waits away.

Votes are the sequences that were vouched for within the last `WINDOW` rounds, so whoever has a tenth of
all compute has a tenth of the votes, as one member or as a thousand; whoever stops computing has none
after a while. They stay as they are for a term of `TERM` rounds: that is what makes the voters of a
round known to all who decide it. One vote a member would not do. Wherever the least work for one lay,
members differ in what they can compute, and a crowd that does just enough with each identity would
have more votes for its work than the rest have.

Nor is a large member's number of votes bounded. Whatever it had less would go to all others, a crowd
without work among them: where three members do nearly everything, a bound of a fourth hands a fourth to
whoever else has done anything at all. How much of the work one member can have is bounded where it is
dealt (`max_share`).

Whoever had no votes yet when a check of its work failed is turned away: its place is for somebody who
works. It may come back when the chain has forgotten it, a `WINDOW` later.

Who is away has no votes and keeps its account: whoever closes a laptop in the evening goes on in the
morning where it was, and whoever was accused comes back accused.

*Where none of the members has votes*, since all who had some are away, all count alike: each has one
vote, may look and vouch. That lasts until somebody has votes again.

All this follows from what records hold, in whole numbers.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from ...crypto.identity import PeerId
from .contributions import Contributions
from .disputes import LAG, OPEN, Called, Outcome, call, outcome
from .sequential import LevelTest
from .standing import Standings, halves_test
from .tally import Ending, Tally
from .verdict import Seen, Usual, level, passing

TERM = 16
"""Rounds for which votes stay as they are."""
WINDOW = 1024
"""Rounds for which work that was vouched for gives votes."""
FRESH = 16
"""Rounds within which a look is recorded, or not at all."""
VOUCHERS = 3
"""So many different members vouch for somebody before it has its first votes, or all that could."""
RECENT = 8
"""Scores of each member that tell what is usual."""


@dataclass(frozen=True, slots=True)
class FirstLook:
    """What a member saw of one sequence that was dealt to another one."""

    checker: PeerId
    peer: PeerId
    round: int
    """In which the checked update counts."""
    share: int
    """The sequences that were dealt for it."""
    score: int
    """In thousandths of a standard deviation of chance."""
    beginning: int | None = None
    """The same of the sequence's first half alone; None where it has none."""

    @property
    def name(self) -> bytes:
        """What tells it from all others: a member looks once at a round at most."""
        return self.checker + self.round.to_bytes(8, "big")

    @property
    def seen(self) -> Seen:
        """As it counts for what is usual."""
        return Seen(self.score, self.share, self.beginning)


@dataclass(frozen=True, slots=True)
class SecondLook:
    """What another member saw where a first look was low."""

    looker: PeerId
    first: FirstLook
    low: bool
    """Whether the share is (`verdict.failed`)."""


@dataclass(frozen=True)
class Facts:
    """What one record says of work and checks."""

    round: int
    shares: Mapping[PeerId, int]
    """Of each update that counts, and that could be looked at: the sequences that were dealt for it."""
    looks: tuple[FirstLook, ...] = ()
    again: tuple[SecondLook, ...] = ()
    lot: bytes = b""
    """The beacon of the round, which draws who looks again."""


@dataclass(slots=True)
class Account:
    """What the chain knows of one member's work."""

    standings: Standings = field(default_factory=Standings)
    waiting: deque[tuple[int, int]] = field(default_factory=deque)
    """Rounds and sequences that nobody has vouched for yet."""
    vouched: dict[int, int] = field(default_factory=dict)
    """Sequences, by term."""
    vouchers: dict[PeerId, int] = field(default_factory=dict)
    """Who has vouched, with the latest round of the work."""
    scores: deque[Seen] = field(default_factory=lambda: deque(maxlen=RECENT))
    last: int = 0
    """The round of the latest update that counts."""
    checks: int = 0
    """How often it was looked at."""
    turned_away: bool = False
    """Whether it has to go: a check failed before it had any votes."""
    low: int = 0
    """How many of these looks were low."""
    failed: int = 0
    """How many of the low ones were confirmed by others."""
    looks: int = 0
    """How often it has looked at others."""

    @property
    def work(self) -> int:
        """The sequences that are vouched for."""
        return sum(self.vouched.values())

    def copy(self) -> Account:
        """To be changed in another way."""
        return replace(
            self,
            waiting=self.waiting.copy(),
            vouched=dict(self.vouched),
            vouchers=dict(self.vouchers),
            scores=self.scores.copy(),
        )

    def vouch(self, round_: int, voucher: PeerId | None) -> int:
        """Somebody vouches for what waits up to this round; None: nobody else is there to do it.
        Returns how many sequences that are."""
        done = 0
        while self.waiting and self.waiting[0][0] <= round_:
            of, sequences = self.waiting.popleft()
            self.vouched[of // TERM] = self.vouched.get(of // TERM, 0) + sequences
            done += sequences
        if voucher is not None:
            self.vouchers[voucher] = max(round_, self.vouchers.get(voucher, 0))
        return done

    def forget(self, round_: int) -> None:
        """Drop what is too old at this round."""
        while self.waiting and self.waiting[0][0] <= round_ - WINDOW:
            self.waiting.popleft()
        for term in [term for term in self.vouched if (term + 1) * TERM <= round_ - WINDOW]:
            del self.vouched[term]
        for peer in [peer for peer, at in self.vouchers.items() if at <= round_ - WINDOW]:
            del self.vouchers[peer]


@dataclass(slots=True)
class Dispute:
    """A low first look that others look at again."""

    since: int
    """The round whose record holds it."""
    bound: int
    """The lowest score that passes."""
    called: Called | None = None
    """Who is to look again; None until that is drawn."""
    again: dict[PeerId, bool] = field(default_factory=dict)
    """Who has looked again, and whether the share is low."""


class Accounts:
    """All accounts after some rounds, and the votes of the term."""

    def __init__(self, founder: PeerId, levels: LevelTest) -> None:
        """The founder has the only vote at the beginning. `levels`: the test of how high scores are."""
        self._levels = levels
        self._halves = halves_test(levels.deviation)
        self._accounts: dict[PeerId, Account] = {}
        self._disputes: dict[FirstLook, Dispute] = {}
        # Who has looked at which round, while they are fresh.
        self._looked: set[tuple[PeerId, int]] = set()
        self._members: frozenset[PeerId] = frozenset({founder})
        self.earned: Mapping[PeerId, int] = {founder: 1}
        """The votes of everybody who has any in this term, whether it is here or not."""
        self.votes: Mapping[PeerId, int] = self.earned
        """The votes of the members that have any; one each where none has."""
        self._usual = Usual()
        self.tally = Tally()
        """What all looks have come to."""
        self.ended: tuple[tuple[FirstLook, Ending], ...] = ()
        """The disputes that the last record ended."""
        self.contributions = Contributions()
        """What everybody has done since the beginning."""

    def copy(self) -> Accounts:
        """To be grown in another way."""
        copy = Accounts.__new__(Accounts)
        vars(copy).update(vars(self))
        copy._accounts = {peer: account.copy() for peer, account in self._accounts.items()}
        copy._disputes = {
            first: replace(dispute, again=dict(dispute.again))
            for first, dispute in self._disputes.items()
        }
        copy._looked = set(self._looked)
        return copy

    def __getitem__(self, peer: PeerId) -> Account:
        """The account of a member; an empty one of whoever has none."""
        return self._accounts.get(peer, Account())

    def standings(self) -> dict[PeerId, Standings]:
        """How everybody stands who has an account."""
        return {peer: account.standings for peer, account in self._accounts.items()}

    @property
    def disputes(self) -> Mapping[FirstLook, Dispute]:
        """The low first looks that are not settled."""
        return self._disputes

    def usual(self, share: int) -> int:
        """The usual score for a share of so many sequences, in this term."""
        return self._usual.of(share)

    def bound(self, share: int) -> int:
        """The lowest score that passes in this term, for a share of so many sequences."""
        return passing(self.usual(share))

    def counts(self, peer: PeerId) -> bool:
        """Whether the updates of `peer` are part of the step."""
        return self[peer].standings.counts

    def left_out(self) -> frozenset[PeerId]:
        """Those whose updates are no part of the step."""
        return frozenset(peer for peer, own in self._accounts.items() if not own.standings.counts)

    def chance_to_look(self, peer: PeerId, every: int) -> Fraction:
        """How probable it is that `peer` looks at somebody in a round, where those with votes look once
        in `every` rounds on average.

        In proportion to its votes, or a crowd whose identities have next to none would make nearly all
        looks. Who has none looks at nobody.
        """
        return chance_to_look(self.votes, peer, every)

    def takes_look(self, checker: PeerId, peer: PeerId, round_: int, now: int) -> bool:
        """Whether the record of round `now` may hold a look of this checker at an update of `round_`."""
        return (
            max(0, now - FRESH) < round_ < now
            and peer in self._accounts
            and (checker, round_) not in self._looked
            and self._may_look(checker, peer)
        )

    def may_look_again(self, looker: PeerId, first: FirstLook) -> bool:
        """Whether this dispute is open, and waits for a second look of `looker`."""
        return looker in self.waits_for(first) and self._may_look(looker, first.peer)

    def waits_for(self, first: FirstLook) -> frozenset[PeerId]:
        """Those who are called to look again and have not: all called but the checked member, the one
        who looked first among them. Nobody where there is no such dispute."""
        dispute = self._disputes.get(first)
        if dispute is None or dispute.called is None:
            return frozenset()
        return frozenset(dispute.called.weights) - dispute.again.keys() - {first.peer}

    def close(self, facts: Facts, members: Collection[PeerId]) -> None:
        """Take in what the next record says; `members` are those of the round after it. That looks are
        those that were drawn, and that signatures hold, is checked before."""
        self.ended = ()
        counted: dict[PeerId, int] = {}
        checked: Counter[PeerId] = Counter()
        for peer, sequences in facts.shares.items():
            account = self._accounts.setdefault(peer, Account())
            account.last = facts.round
            if account.standings.counts:
                account.waiting.append((facts.round, sequences))
                counted[peer] = sequences
        for look in facts.looks:
            if self.takes_look(look.checker, look.peer, look.round, facts.round):
                checked[look.peer] += self._look(look, facts.round)
        self.contributions = self.contributions.after(counted, checked)
        for look in facts.again:
            if self.may_look_again(look.looker, look.first):
                self._look_again(look)
        for first, dispute in list(self._disputes.items()):
            if dispute.since + OPEN <= facts.round:
                self._end(first, "dropped")
        present = frozenset(members)
        if present != self._members:
            self._members, self.votes = present, held(self.earned, present)
        if (facts.round + 1) % TERM == 0:
            self._begin_term(facts.round + 1)
        for first, dispute in self._disputes.items():
            if dispute.since + LAG == facts.round:
                dispute.called = self._call(first, facts.lot)

    def _call(self, first: FirstLook, lot: bytes) -> Called:
        """Who is to look again at what this look found low. Whose word is not believed has no part in
        it."""
        voters = {
            peer: votes
            for peer, votes in self.votes.items()
            if peer == first.peer or not self[peer].standings.word.accused
        }
        return call(voters, first.name + lot)

    def _look(self, look: FirstLook, now: int) -> int:
        """Take in a first look. Returns how many sequences it vouches for."""
        account = self._accounts[look.peer]
        self._looked.add((look.checker, look.round))
        account.checks += 1
        if (own := self._accounts.get(look.checker)) is not None:
            own.looks += 1
        account.scores.append(look.seen)
        bound = self.bound(look.share)
        low = look.score < bound
        self.tally = self.tally.looked(low=low)
        if low:
            account.low += 1
            self._disputes[look] = Dispute(now, bound)
            return 0
        self._score(account, look)
        if (halves := self._usual.halves(look.seen)) is not None:
            account.standings = account.standings.halved(self._halves, halves)
        account.standings = account.standings.checked(failed=False)
        sequences = account.vouch(look.round, look.checker)
        self._told(look.checker, contradicted=False)
        return sequences

    def _look_again(self, look: SecondLook) -> None:
        dispute = self._disputes[look.first]
        dispute.again[look.looker] = look.low
        self.tally = self.tally.looked_again()
        assert dispute.called is not None
        settled = outcome(dispute.called, dispute.again, look.first.peer)
        if settled != "open":
            self._end(look.first, settled)
            self._settle(look.first, settled)

    def _end(self, first: FirstLook, ending: Ending) -> None:
        del self._disputes[first]
        self.tally = self.tally.ended(ending)
        self.ended = (*self.ended, (first, ending))

    def _settle(self, first: FirstLook, settled: Outcome) -> None:
        account = self._accounts.get(first.peer)
        failed = settled == "failed"
        if account is not None:
            account.standings = account.standings.checked(failed=failed)
            if failed:
                # Not before: a few low looks of one liar would be enough.
                self._score(account, first)
                account.failed += 1
                account.waiting.clear()
                if first.peer not in self.earned:
                    account.standings = account.standings.turned_away()
                    account.turned_away = True
            if not account.standings.counts:
                account.vouched.clear()
        self._told(first.checker, contradicted=not failed)

    def _score(self, account: Account, look: FirstLook) -> None:
        """A score that nobody doubts, where others with such a share tell how high it has to be."""
        usual = self.usual(look.share)
        if usual and self._usual.knows(look.share):
            account.standings = account.standings.scored(self._levels, level(look.score, usual))

    def _told(self, checker: PeerId, *, contradicted: bool) -> None:
        """A look was true, or others say that it was not."""
        if (account := self._accounts.get(checker)) is not None:
            account.standings = account.standings.looked(contradicted=contradicted)

    def _may_look(self, looker: PeerId, peer: PeerId) -> bool:
        return looker != peer and looker in self.votes and not self[looker].standings.word.accused

    def _begin_term(self, round_: int) -> None:
        voters = self.votes
        self._looked = {look for look in self._looked if look[1] > round_ - FRESH}
        for peer, account in list(self._accounts.items()):
            if len(voters) == 1 and peer in voters:
                account.vouch(round_, None)
            account.forget(round_)
            if account.standings.word.accused:
                # It looks at nobody now, so only time can clear it.
                account.standings = account.standings.looked(contradicted=False)
            if not account.work and account.last <= round_ - WINDOW:
                del self._accounts[peer]
        earned = {peer: self._earned(peer, account) for peer, account in self._accounts.items()}
        earned = {peer: votes for peer, votes in earned.items() if votes > 0}
        # Where nobody has earned any, those who had votes keep them: somebody must look.
        self.earned = earned or self.earned
        self.votes = held(self.earned, self._members)
        self._usual = Usual(
            [(tuple(self[peer].scores), votes) for peer, votes in sorted(self.votes.items())]
        )

    def _earned(self, peer: PeerId, account: Account) -> int:
        possible = len(self.votes.keys() - {peer})
        # Once is enough: where few could vouch, more are asked for when there are more.
        known = peer in self.earned or len(account.vouchers) >= max(1, min(VOUCHERS, possible))
        return account.work if known and account.standings.credible else 0


def held(earned: Mapping[PeerId, int], members: Collection[PeerId]) -> Mapping[PeerId, int]:
    """The votes of those of the members that have earned any; one each where none has."""
    votes = {peer: number for peer, number in earned.items() if peer in members}
    return votes or dict.fromkeys(members, 1)


def chance_to_look(votes: Mapping[PeerId, int], peer: PeerId, every: int) -> Fraction:
    """As `Accounts.chance_to_look`, with these votes."""
    total = sum(votes.values())
    if not total:
        return Fraction(0)
    fair = Fraction(votes.get(peer, 0) * len(votes), total)
    return min(Fraction(1), fair / every)
