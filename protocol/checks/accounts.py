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

All this follows from what records hold, in whole numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from ...crypto.identity import PeerId
from .disputes import LASTS, Outcome, outcome
from .sequential import LevelTest
from .standing import Standings
from .verdict import level, passing, usual

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
    score: int
    """In thousandths of a standard deviation of chance."""


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
    """Of each update that counts: the sequences that were dealt for it."""
    looks: tuple[FirstLook, ...] = ()
    again: tuple[SecondLook, ...] = ()


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
    scores: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT))
    last: int = 0
    """The round of the latest update that counts."""

    @property
    def work(self) -> int:
        """The sequences that are vouched for."""
        return sum(self.vouched.values())

    def vouch(self, round_: int, voucher: PeerId | None) -> None:
        """Somebody vouches for what waits up to this round; None: nobody else is there to do it."""
        while self.waiting and self.waiting[0][0] <= round_:
            of, sequences = self.waiting.popleft()
            self.vouched[of // TERM] = self.vouched.get(of // TERM, 0) + sequences
        if voucher is not None:
            self.vouchers[voucher] = max(round_, self.vouchers.get(voucher, 0))

    def forget(self, round_: int) -> None:
        """Drop what is too old at this round."""
        while self.waiting and self.waiting[0][0] <= round_ - WINDOW:
            self.waiting.popleft()
        for term in [term for term in self.vouched if (term + 1) * TERM <= round_ - WINDOW]:
            del self.vouched[term]
        for peer in [peer for peer, at in self.vouchers.items() if at <= round_ - WINDOW]:
            del self.vouchers[peer]


@dataclass(slots=True)
class _Dispute:
    since: int
    again: dict[PeerId, bool] = field(default_factory=dict)


class Accounts:
    """All members' accounts after some rounds, and the votes of the term."""

    def __init__(self, founder: PeerId, levels: LevelTest) -> None:
        """The founder has the only vote at the beginning. `levels`: the test of how high scores are."""
        self._levels = levels
        self._accounts: dict[PeerId, Account] = {}
        self._disputes: dict[FirstLook, _Dispute] = {}
        # Who has looked at which round, while they are fresh.
        self._looked: set[tuple[PeerId, int]] = set()
        self.votes: Mapping[PeerId, int] = {founder: 1}
        """Of each member that has any, in this term."""
        self.usual = 0
        """The usual score, in this term."""

    def __getitem__(self, peer: PeerId) -> Account:
        """The account of a member; an empty one of whoever has none."""
        return self._accounts.get(peer, Account())

    @property
    def bound(self) -> int:
        """The lowest score that passes in this term."""
        return passing(self.usual)

    @property
    def disputed(self) -> Iterable[FirstLook]:
        """The low first looks that are not settled."""
        return self._disputes.keys()

    def counts(self, peer: PeerId) -> bool:
        """Whether the updates of `peer` are part of the step."""
        return self[peer].standings.counts

    def leave(self, peer: PeerId) -> None:
        """Forget a member that is out: whoever comes back begins anew, as anybody could with another
        identity. Its votes are gone at once."""
        self._accounts.pop(peer, None)
        for first in [first for first in self._disputes if first.peer == peer]:
            del self._disputes[first]
        self.votes = {voter: votes for voter, votes in self.votes.items() if voter != peer}

    def newcomers(self) -> int:
        """How many members without votes there may be: half as many as have some, and two at least.

        A member's update has one say in the step until it is found out, and who checks it has only so
        much time. So newcomers are never more than a third of all members. Who of many is let in must
        cost what compute costs, or a crowd fills these places again and again.
        """
        return max(2, len(self.votes) // 2)

    def chance_to_look(self, peer: PeerId, every: int) -> Fraction:
        """How probable it is that `peer` looks at somebody in a round, where those with votes look once
        in `every` rounds on average.

        In proportion to its votes, or a crowd whose identities have next to none would make nearly all
        looks. Who has none looks at nobody.
        """
        total = sum(self.votes.values())
        if not total:
            return Fraction(0)
        fair = Fraction(self.votes.get(peer, 0) * len(self.votes), total)
        return min(Fraction(1), fair / every)

    def close(self, facts: Facts) -> None:
        """Take in what the next record says. That looks are those that were drawn, and that signatures
        hold, is checked before."""
        for peer, sequences in facts.shares.items():
            account = self._accounts.setdefault(peer, Account())
            account.last = facts.round
            if account.standings.counts:
                account.waiting.append((facts.round, sequences))
        for look in facts.looks:
            self._look(look, facts.round)
        for look in facts.again:
            self._look_again(look)
        for first, dispute in list(self._disputes.items()):
            if dispute.since + LASTS <= facts.round:
                del self._disputes[first]
        if (facts.round + 1) % TERM == 0:
            self._begin_term(facts.round + 1)

    def _look(self, look: FirstLook, now: int) -> None:
        account = self._accounts.get(look.peer)
        if account is None or not now - FRESH < look.round <= now:
            return
        if not self._may_look(look.checker, look.peer):
            return
        if (look.checker, look.round) in self._looked:
            # One look a round, recorded once.
            return
        self._looked.add((look.checker, look.round))
        if self.usual:
            account.standings = account.standings.scored(
                self._levels, level(look.score, self.usual)
            )
        account.scores.append(look.score)
        if look.score < self.bound:
            self._disputes[look] = _Dispute(now)
            return
        account.standings = account.standings.checked(failed=False)
        account.vouch(look.round, look.checker)
        self._told(look.checker, contradicted=False)

    def _look_again(self, look: SecondLook) -> None:
        dispute = self._disputes.get(look.first)
        if dispute is None or not self._may_look(look.looker, look.first.peer):
            return
        others = self.votes.keys() - {look.first.checker, look.first.peer}
        # Where nobody else has votes, the one who looked first looks at the whole share itself.
        others = others or {look.first.checker}
        if look.looker not in others:
            return
        dispute.again.setdefault(look.looker, look.low)
        settled = outcome(dispute.again, len(others))
        if settled != "open":
            del self._disputes[look.first]
            self._settle(look.first, settled)

    def _settle(self, first: FirstLook, settled: Outcome) -> None:
        account = self._accounts[first.peer]
        failed = settled == "failed"
        account.standings = account.standings.checked(failed=failed)
        if failed:
            account.waiting.clear()
            if first.peer not in self.votes:
                account.standings = account.standings.turned_away()
        if not account.standings.counts:
            account.vouched.clear()
        self._told(first.checker, contradicted=not failed)

    def _told(self, checker: PeerId, *, contradicted: bool) -> None:
        """A look was true, or others say that it was not."""
        if (account := self._accounts.get(checker)) is not None:
            account.standings = account.standings.looked(contradicted=contradicted)

    def _may_look(self, looker: PeerId, peer: PeerId) -> bool:
        return (
            looker != peer
            and self.votes.get(looker, 0) > 0
            and not self[looker].standings.word.accused
        )

    def _begin_term(self, round_: int) -> None:
        alone = len(self.votes) == 1
        self._looked = {look for look in self._looked if look[1] > round_ - FRESH}
        for peer, account in list(self._accounts.items()):
            if alone and peer in self.votes:
                account.vouch(round_, None)
            account.forget(round_)
            if account.standings.word.accused:
                # It looks at nobody now, so only time can clear it.
                account.standings = account.standings.looked(contradicted=False)
            if not account.work and account.last <= round_ - WINDOW:
                del self._accounts[peer]
        votes = {peer: self._earned(peer, account) for peer, account in self._accounts.items()}
        votes = {peer: earned for peer, earned in votes.items() if earned > 0}
        # Where nobody has earned any, those who had votes keep them: somebody must look.
        self.votes = votes or self.votes
        peers = sorted(self.votes)
        self.usual = usual(
            [self[peer].scores for peer in peers], [self.votes[peer] for peer in peers]
        )

    def _earned(self, peer: PeerId, account: Account) -> int:
        possible = len(self.votes.keys() - {peer})
        # Once is enough: where few could vouch, more are asked for when there are more.
        known = peer in self.votes or len(account.vouchers) >= min(VOUCHERS, possible)
        return account.work if known and account.standings.credible else 0
