"""Per-member audit state: what each member has done, how much of it is vouched for, and the votes that
follow.

Updates count from a member's first round on; votes have to be earned. A member's work waits until an
auditor with votes has audited some of it. A passed audit vouches for all work that waits up to the
audited round. So a member that is rarely audited loses nothing, and one that works only in some rounds
fails in proportion to the rounds it skips. A failed audit discards the waiting work.

A member has one vote per sequence vouched for within the last `WINDOW` rounds. A tenth of all compute
therefore has a tenth of the votes, whether as one member or as a thousand, and a member that stops
computing loses its votes in time. Votes are fixed for an epoch of `TERM` rounds, so that all members
deciding a round agree on its voters. One vote per member would not do: members differ in what they can
compute, so wherever the minimum work for a vote were set, a crowd of identities each doing just that
minimum would get more votes for its work than everyone else.

A large member's votes are not capped either. A cap would redistribute its votes to all others, including
a crowd that does no work: where three members do nearly everything, a cap of a fourth gives a fourth of
the votes to any member that has done anything at all. The share of work that one member can have is
capped where work is assigned (`max_share`).

A member whose audit fails before it has any votes is turned away, which frees its place for one that
works. It may come back once the chain has forgotten it, `WINDOW` rounds later.

An absent member has no votes but keeps its state: a laptop closed in the evening resumes in the morning
where it was, and a member that left accused comes back accused.

*If no present member has votes*, since all voters are away, all count alike: each has one vote
and may audit and vouch. That lasts until some member has earned votes again.

All this follows from the records alone, in integer arithmetic.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from ...crypto.identity import PeerId
from .audit_sums import AuditSums, halves_test
from .contributions import Contributions
from .counts import AuditCounts, DisputeEnding
from .disputes import LAG, OPEN, Jury, Outcome, call, outcome
from .sequential_test import LevelTest
from .verdict import BaselineSample, ScoreBaseline, level, passing

TERM = 16
"""Rounds in an epoch, for which votes stay fixed."""
WINDOW = 1024
"""Rounds for which vouched work gives votes."""
FRESH = 16
"""An audit is recorded less than this many rounds after the audited round, or not at all."""
VOUCHERS = 3
"""Number of distinct members that must vouch for a member before its first votes; fewer where fewer
could."""
RECENT = 8
"""Number of each member's latest scores that set the baseline."""


@dataclass(frozen=True, slots=True)
class Audit:
    """Audit of one sequence assigned to another member."""

    checker: PeerId
    peer: PeerId
    round: int
    """The round whose record counts the audited update."""
    share: int
    """Number of sequences assigned for the update."""
    score: int
    """In thousandths of a standard deviation of chance."""
    beginning: int | None = None
    """The same for the sequence's first half alone; None if there is no such score."""

    @property
    def name(self) -> bytes:
        """Unique key of the audit: a member audits at most once per round."""
        return self.checker + self.round.to_bytes(8, "big")

    @property
    def seen(self) -> BaselineSample:
        """The audit as a sample for the baseline."""
        return BaselineSample(self.score, self.share, self.beginning)


@dataclass(frozen=True, slots=True)
class Reaudit:
    """Re-audit by another member after an audit with a low score."""

    looker: PeerId
    first: Audit
    low: bool
    """Whether it finds the whole share low (`verdict.failed`)."""


@dataclass(frozen=True)
class RecordedWork:
    """Work and audits in one record."""

    round: int
    shares: Mapping[PeerId, int]
    """For each update that counts and can be audited: the number of sequences assigned for it."""
    looks: tuple[Audit, ...] = ()
    again: tuple[Reaudit, ...] = ()
    lot: bytes = b""
    """The round's beacon, which draws the members called to re-audit."""


@dataclass(slots=True)
class AuditState:
    """Audit state of one member, as known from the chain."""

    standings: AuditSums = field(default_factory=AuditSums)
    waiting: deque[tuple[int, int]] = field(default_factory=deque)
    """(round, sequences) of work that is not vouched for yet."""
    vouched: dict[int, int] = field(default_factory=dict)
    """Vouched sequences by epoch."""
    vouchers: dict[PeerId, int] = field(default_factory=dict)
    """Members that vouched, each with the latest round of the work."""
    scores: deque[BaselineSample] = field(default_factory=lambda: deque(maxlen=RECENT))
    last: int = 0
    """Round of the latest update that counts."""
    checks: int = 0
    """Number of audits of its work."""
    turned_away: bool = False
    """Whether it must leave: an audit failed before it had any votes."""
    low: int = 0
    """Number of those audits with a low score."""
    failed: int = 0
    """Number of low scores that re-audits confirmed."""
    looks: int = 0
    """Number of audits it made of others."""

    @property
    def work(self) -> int:
        """Number of vouched sequences."""
        return sum(self.vouched.values())

    def copy(self) -> AuditState:
        """Return a copy that can be changed independently."""
        return replace(
            self,
            waiting=self.waiting.copy(),
            vouched=dict(self.vouched),
            vouchers=dict(self.vouchers),
            scores=self.scores.copy(),
        )

    def vouch(self, round_: int, voucher: PeerId | None) -> int:
        """Vouch for the work waiting up to this round, and return its number of sequences.

        `voucher` is None if no other member is there to audit.
        """
        done = 0
        while self.waiting and self.waiting[0][0] <= round_:
            of, sequences = self.waiting.popleft()
            self.vouched[of // TERM] = self.vouched.get(of // TERM, 0) + sequences
            done += sequences
        if voucher is not None:
            self.vouchers[voucher] = max(round_, self.vouchers.get(voucher, 0))
        return done

    def forget(self, round_: int) -> None:
        """Drop what has left the window at this round."""
        while self.waiting and self.waiting[0][0] <= round_ - WINDOW:
            self.waiting.popleft()
        for term in [term for term in self.vouched if (term + 1) * TERM <= round_ - WINDOW]:
            del self.vouched[term]
        for peer in [peer for peer, at in self.vouchers.items() if at <= round_ - WINDOW]:
            del self.vouchers[peer]


@dataclass(slots=True)
class Dispute:
    """Open dispute about an audit with a low score, settled by re-audits."""

    since: int
    """The round whose record holds the audit."""
    bound: int
    """The lowest passing score."""
    called: Jury | None = None
    """Members called to re-audit; None until they are drawn."""
    again: dict[PeerId, bool] = field(default_factory=dict)
    """Result of each re-audit: whether the share is low."""


class ReputationTable:
    """Audit state of all members after some round, and the votes of the epoch."""

    def __init__(self, founder: PeerId, levels: LevelTest) -> None:
        """`founder` has the only vote at first. `levels` is the test of how high scores are."""
        self._levels = levels
        self._halves = halves_test(levels.deviation)
        self._accounts: dict[PeerId, AuditState] = {}
        self._disputes: dict[Audit, Dispute] = {}
        # (auditor, round) of the audits within the last `FRESH` rounds.
        self._looked: set[tuple[PeerId, int]] = set()
        self._members: frozenset[PeerId] = frozenset({founder})
        self.earned: Mapping[PeerId, int] = {founder: 1}
        """Votes earned for this epoch, of present and absent members."""
        self.votes: Mapping[PeerId, int] = self.earned
        """Votes of present members; one each if none has earned any."""
        self._usual = ScoreBaseline()
        self.tally = AuditCounts()
        """Totals of all audits."""
        self.ended: tuple[tuple[Audit, DisputeEnding], ...] = ()
        """Disputes that the last record ended."""
        self.contributions = Contributions()
        """Each member's counted work since the founding."""

    def copy(self) -> ReputationTable:
        """Return a copy that can grow independently."""
        copy = ReputationTable.__new__(ReputationTable)
        vars(copy).update(vars(self))
        copy._accounts = {peer: account.copy() for peer, account in self._accounts.items()}
        copy._disputes = {
            first: replace(dispute, again=dict(dispute.again))
            for first, dispute in self._disputes.items()
        }
        copy._looked = set(self._looked)
        return copy

    def __getitem__(self, peer: PeerId) -> AuditState:
        """Return a member's state; an empty one if it has none."""
        return self._accounts.get(peer, AuditState())

    def standings(self) -> dict[PeerId, AuditSums]:
        """Return the reputation of every member with state."""
        return {peer: account.standings for peer, account in self._accounts.items()}

    @property
    def disputes(self) -> Mapping[Audit, Dispute]:
        """Audits with a low score that are not settled yet."""
        return self._disputes

    def usual(self, share: int) -> int:
        """Return this epoch's usual score for a share of `share` sequences."""
        return self._usual.of(share)

    def bound(self, share: int) -> int:
        """Return this epoch's lowest passing score for a share of `share` sequences."""
        return passing(self.usual(share))

    def counts(self, peer: PeerId) -> bool:
        """Whether the updates of `peer` enter the step."""
        return self[peer].standings.counts

    def left_out(self) -> frozenset[PeerId]:
        """Return the members whose updates do not enter the step."""
        return frozenset(peer for peer, own in self._accounts.items() if not own.standings.counts)

    def chance_to_look(self, peer: PeerId, every: int) -> Fraction:
        """Return the probability that `peer` audits in a round, where members with votes audit once in
        `every` rounds on average.

        It is proportional to votes; otherwise a crowd of identities with next to no votes would make
        nearly all audits. A member without votes audits nothing.
        """
        return chance_to_look(self.votes, peer, every)

    def takes_look(self, checker: PeerId, peer: PeerId, round_: int, now: int) -> bool:
        """Whether the record of round `now` may hold this checker's audit of an update of `round_`."""
        return (
            max(0, now - FRESH) < round_ < now
            and peer in self._accounts
            and (checker, round_) not in self._looked
            and self._may_look(checker, peer)
        )

    def may_look_again(self, looker: PeerId, first: Audit) -> bool:
        """Whether this dispute is open and still expects a re-audit by `looker`."""
        return looker in self.waits_for(first) and self._may_look(looker, first.peer)

    def waits_for(self, first: Audit) -> frozenset[PeerId]:
        """Return the members called to re-audit that have not done so: all called, the first auditor
        included, except the audited member. Empty without such a dispute."""
        dispute = self._disputes.get(first)
        if dispute is None or dispute.called is None:
            return frozenset()
        return frozenset(dispute.called.weights) - dispute.again.keys() - {first.peer}

    def close(self, facts: RecordedWork, members: Collection[PeerId]) -> None:
        """Apply the next record; `members` are the members of the round after it.

        The caller has checked that audits are the drawn ones and that signatures are valid.
        """
        self.ended = ()
        counted: dict[PeerId, int] = {}
        checked: Counter[PeerId] = Counter()
        for peer, sequences in facts.shares.items():
            account = self._accounts.setdefault(peer, AuditState())
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

    def _call(self, first: Audit, lot: bytes) -> Jury:
        """Draw the members that re-audit this low audit. Members accused of false audits take no
        part."""
        voters = {
            peer: votes
            for peer, votes in self.votes.items()
            if peer == first.peer or not self[peer].standings.word.accused
        }
        return call(voters, first.name + lot)

    def _look(self, look: Audit, now: int) -> int:
        """Apply an audit and return the number of sequences it vouches for."""
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

    def _look_again(self, look: Reaudit) -> None:
        dispute = self._disputes[look.first]
        dispute.again[look.looker] = look.low
        self.tally = self.tally.looked_again()
        assert dispute.called is not None
        settled = outcome(dispute.called, dispute.again, look.first.peer)
        if settled != "open":
            self._end(look.first, settled)
            self._settle(look.first, settled)

    def _end(self, first: Audit, ending: DisputeEnding) -> None:
        del self._disputes[first]
        self.tally = self.tally.ended(ending)
        self.ended = (*self.ended, (first, ending))

    def _settle(self, first: Audit, settled: Outcome) -> None:
        account = self._accounts.get(first.peer)
        failed = settled == "failed"
        if account is not None:
            account.standings = account.standings.checked(failed=failed)
            if failed:
                # Only now: otherwise a single liar's few low audits would be enough.
                self._score(account, first)
                account.failed += 1
                account.waiting.clear()
                if first.peer not in self.earned:
                    account.standings = account.standings.turned_away()
                    account.turned_away = True
            if not account.standings.counts:
                account.vouched.clear()
        self._told(first.checker, contradicted=not failed)

    def _score(self, account: AuditState, look: Audit) -> None:
        """Add an undisputed score to the level test, if members with such a share set a baseline for
        it."""
        usual = self.usual(look.share)
        if usual and self._usual.knows(look.share):
            account.standings = account.standings.scored(self._levels, level(look.score, usual))

    def _told(self, checker: PeerId, *, contradicted: bool) -> None:
        """Record whether re-audits contradicted the checker's audit."""
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
                # It may not audit now, so only time can clear it.
                account.standings = account.standings.looked(contradicted=False)
            if not account.work and account.last <= round_ - WINDOW:
                del self._accounts[peer]
        earned = {peer: self._earned(peer, account) for peer, account in self._accounts.items()}
        earned = {peer: votes for peer, votes in earned.items() if votes > 0}
        # If no member has earned any, the previous voters keep theirs: someone must audit.
        self.earned = earned or self.earned
        self.votes = held(self.earned, self._members)
        self._usual = ScoreBaseline(
            [(tuple(self[peer].scores), votes) for peer, votes in sorted(self.votes.items())]
        )

    def _earned(self, peer: PeerId, account: AuditState) -> int:
        possible = len(self.votes.keys() - {peer})
        # Needed once only: where few could vouch, more would be required as soon as there are more.
        known = peer in self.earned or len(account.vouchers) >= max(1, min(VOUCHERS, possible))
        return account.work if known and account.standings.credible else 0


def held(earned: Mapping[PeerId, int], members: Collection[PeerId]) -> Mapping[PeerId, int]:
    """Return the votes of the members that have earned any; one each if none has."""
    votes = {peer: number for peer, number in earned.items() if peer in members}
    return votes or dict.fromkeys(members, 1)


def chance_to_look(votes: Mapping[PeerId, int], peer: PeerId, every: int) -> Fraction:
    """Return the same as `ReputationTable.chance_to_look`, for these votes."""
    total = sum(votes.values())
    if not total:
        return Fraction(0)
    fair = Fraction(votes.get(peer, 0) * len(votes), total)
    return min(Fraction(1), fair / every)
