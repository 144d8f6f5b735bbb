"""Per-member audit state: what each member has done, how much of it passed audits vouch for, and the
votes that follow.

Updates count from a member's first round on; votes have to be earned. A member's work waits until an
auditor with votes has audited some of it. A passed audit *vouches* for all work that waits up to the
audited round, and its auditor becomes one of the member's *vouchers*. So a member that is rarely audited
loses nothing, and one that works only in some rounds fails in proportion to the rounds it skips. A
failed audit discards the waiting work.

A member has one vote per sequence vouched for within the last `WINDOW` rounds. A tenth of all compute
therefore has a tenth of the votes, whether as one member or as a thousand, and a member that stops
computing loses its votes in time. Votes are fixed for an epoch of `EPOCH_ROUNDS` rounds, so that all
members deciding a round agree on its voters. One vote per member would not do: members differ in what
they can compute, so wherever the minimum work for a vote were set, a crowd of identities each doing just
that minimum would get more votes for its work than everyone else.

A large member's votes are not capped either. A cap would redistribute its votes to all others, including
a crowd that does almost no work: if three members do nearly everything, a cap of a fourth gives a fourth
of the votes to the other members, however little they have done. The share of work that one member can
have is capped where work is assigned (`max_share`).

A member whose audit fails while it has no votes is dismissed, which frees its place for one that works.
It may come back once the chain has forgotten it, `WINDOW` rounds later.

An absent member has no votes but keeps its state: a laptop closed in the evening resumes in the morning
where it was, and a member that left accused comes back accused.

*During the founding* of a swarm the founder keeps more than two thirds of all votes: otherwise the
first members to be audited could outvote it. The founding is over once the members with votes do more
than two thirds of the work, and no third of the others by work has nine twentieths of their votes.

*If no present member has votes*, since all voters are away, all count alike: each has one vote
and may audit and vouch. That lasts until a voter returns or enough members have earned votes. During the
founding, while the founder is away, its part is taken by those with votes if they do most of the work,
or else by all: each by its work in the epoch before (`EpochVotes`).

All this follows from the records alone, in integer arithmetic.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from fractions import Fraction

from ...crypto.identity import PeerId
from ..wire.saved_state import Restorable, fields, of, part
from .audit_sums import AuditSums, halves_test
from .contributions import Contributions
from .counts import AuditCounts, DisputeEnding
from .disputes import DRAW_LAG_ROUNDS, OPEN_ROUNDS, Finding, Jury, Outcome, draw_jury, outcome
from .sequential_test import LevelTest
from .verdict import BaselineSample, ScoreBaseline, failed, level, passing

EPOCH_ROUNDS = 16
"""Rounds in an epoch, for which votes stay fixed."""
WINDOW = 1024
"""Rounds for which work that is vouched for gives votes."""
FRESH = 16
"""An audit must be recorded less than this many rounds after the audited round."""
VOUCHERS = 3
"""Number of distinct members that must vouch for a member before it gets its first votes. Fewer are
enough if they hold more than a third of all others' votes: otherwise one of four voters, by vouching for
none, could keep the others from ever having votes."""
MIN_VOTERS = 4
"""Minimum number of voters that decide without the founder during the founding, or that end it: one
liar among fewer has a third."""
RECENT = 16
"""Number of each auditor's latest scores that set the baseline."""


@dataclass(frozen=True, slots=True)
class Audit:
    """Audit of one sequence assigned to another member."""

    auditor: PeerId
    peer: PeerId
    round: int
    """The round whose record counts the audited update."""
    share: int
    """Number of sequences assigned for the update."""
    score: int
    """In thousandths of a standard deviation of chance (`sign_score`)."""
    first_half: int | None = None
    """The score of the sequence's first half alone, in the same unit; None if there is none."""
    sequence: int = 0
    """The number of the audited sequence in the share."""

    @property
    def name(self) -> bytes:
        """Unique key of the audit: a member audits at most once per round."""
        return self.auditor + self.round.to_bytes(8, "big")

    @property
    def sample(self) -> BaselineSample:
        """The audit as a sample for the baseline."""
        return BaselineSample(self.score, self.share, self.first_half)


@dataclass(frozen=True, slots=True)
class Reaudit:
    """Re-audit by another member after an audit with a low score."""

    reauditor: PeerId
    low_audit: Audit
    low: bool
    """Whether it finds the whole share low (`verdict.failed`)."""
    spot: bool = False
    """Whether it includes the audited sequence, and finds that one low."""

    @classmethod
    def of_scores(
        cls, reauditor: PeerId, low_audit: Audit, scores: Mapping[int, int], bound: int
    ) -> Reaudit:
        """Return a re-audit with these scores of sequences, by their number in the share; `bound` is the
        dispute's lowest passing score."""
        low = failed(low_audit.score, [*scores.values()], bound)
        return cls(reauditor, low_audit, low, scores.get(low_audit.sequence, bound) < bound)

    @property
    def finding(self) -> Finding:
        """What it finds, for the dispute."""
        return "low" if self.low else "spot" if self.spot else "fine"


@dataclass(frozen=True)
class RecordedWork:
    """Work and audits in one record."""

    round: int
    shares: Mapping[PeerId, int]
    """For each update that counts and can be audited: the number of sequences assigned for it."""
    audits: tuple[Audit, ...] = ()
    reaudits: tuple[Reaudit, ...] = ()
    beacon: bytes = b""
    """The round's beacon, which draws the members called to re-audit."""


@dataclass(slots=True)
class AuditState:
    """Audit state of one member, as known from the chain."""

    sums: AuditSums = field(default_factory=AuditSums)
    waiting: deque[tuple[int, int]] = field(default_factory=deque)
    """(round, sequences) of work that is not vouched for yet."""
    vouched: dict[int, int] = field(default_factory=dict)
    """Number of sequences that are vouched for, by the epoch of the work."""
    vouchers: dict[PeerId, int] = field(default_factory=dict)
    """Members that vouched, each with the latest round that it audited."""
    scores: deque[BaselineSample] = field(default_factory=lambda: deque(maxlen=RECENT))
    """Its latest audits of others, as samples for the baseline. What liars report stays theirs, and
    counts no more than their votes."""
    last_round: int = 0
    """Round of the latest update that counts."""
    audited: int = 0
    """Number of audits of its work."""
    dismissed: bool = False
    """Whether it must leave: an audit failed while it had no votes."""
    low: int = 0
    """Number of audits of its work with a low score."""
    failed: int = 0
    """Number of low scores that re-audits confirmed."""
    audits_made: int = 0
    """Number of audits it made of others."""

    @property
    def work(self) -> int:
        """Number of sequences that are vouched for."""
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

    def work_since(self, round_: int) -> int:
        """Return the number of sequences of work from a round on, the first of an epoch, vouched for or
        waiting."""
        vouched = (
            count for epoch, count in self.vouched.items() if epoch >= round_ // EPOCH_ROUNDS
        )
        return sum(vouched) + sum(count for at, count in self.waiting if at >= round_)

    def vouch(self, round_: int, voucher: PeerId | None) -> int:
        """Vouch for the work waiting up to this round, and return its number of sequences.

        `voucher` is the auditor; None for the only member with votes, whom no other can audit.
        """
        done = 0
        while self.waiting and self.waiting[0][0] <= round_:
            of, sequences = self.waiting.popleft()
            self.vouched[of // EPOCH_ROUNDS] = self.vouched.get(of // EPOCH_ROUNDS, 0) + sequences
            done += sequences
        if voucher is not None:
            self.vouchers[voucher] = max(round_, self.vouchers.get(voucher, 0))
        return done

    def forget(self, round_: int) -> None:
        """Drop work and vouchers that are outside the window at this round."""
        while self.waiting and self.waiting[0][0] <= round_ - WINDOW:
            self.waiting.popleft()
        for epoch in [
            epoch for epoch in self.vouched if (epoch + 1) * EPOCH_ROUNDS <= round_ - WINDOW
        ]:
            del self.vouched[epoch]
        for peer in [peer for peer, at in self.vouchers.items() if at <= round_ - WINDOW]:
            del self.vouchers[peer]


@dataclass(frozen=True)
class EpochVotes:
    """Votes of an epoch, of present and absent members."""

    earned: Mapping[PeerId, int]
    """Votes earned by work. During the founding the founder's are raised."""
    founder: PeerId | None = None
    """The founder during the founding; None afterwards."""
    recent: Mapping[PeerId, int] = field(default_factory=dict)
    """During the founding: the work of the others in the epoch before."""

    def present(self, members: Collection[PeerId]) -> Mapping[PeerId, int]:
        """Return the votes of the `members` that decide (`deciding`). If there are none, all have one;
        during the founding those that work have votes for it instead, none more than a third: a crowd
        that does little has little to say."""
        if deciding := self.deciding(members):
            return deciding
        recent = {peer: work for peer, work in self.recent.items() if peer in members}
        return at_most_a_third(recent) if len(recent) > 2 else dict.fromkeys(members, 1)

    def deciding(self, members: Collection[PeerId]) -> Mapping[PeerId, int]:
        """Return the votes that `members` have earned; empty if none has any.

        During the founding, if the founder is none of them, those that have earned some decide by their
        recent work, none with more than a third, if they are at least `MIN_VOTERS` and did more than two
        thirds of it, the founder's counted as if it had done as much as others: those that merely came
        first have earned most."""
        held = {peer: votes for peer, votes in self.earned.items() if peer in members}
        if self.founder is None or self.founder in held:
            return held
        recent = {peer: self.recent[peer] for peer in held if peer in self.recent}
        whole = with_founder(work for peer, work in self.recent.items() if peer in members)
        enough = len(recent) >= MIN_VOTERS and 3 * sum(recent.values()) > 2 * whole
        return at_most_a_third(recent) if enough else {}


def with_founder(works: Iterable[int]) -> int:
    """Return the work of all members, given what each of the others did: whatever the founder did, it
    counts as one of average work."""
    done = [work for work in works if work]
    return sum(done) + sum(done) // max(1, len(done))


def at_most_a_third(votes: Mapping[PeerId, int]) -> dict[PeerId, int]:
    """Return the votes of at least three members, none of whom keeps more than a third of all."""
    _, second, *others = sorted(votes.values(), reverse=True)
    limit = (second + sum(others)) // 2
    if second > limit:
        limit = sum(others)
    return {peer: min(count, max(1, limit)) for peer, count in votes.items()}


@dataclass(slots=True)
class Dispute:
    """Open dispute about an audit with a low score, settled by re-audits."""

    since: int
    """The round whose record holds the audit."""
    bound: int
    """The lowest passing score."""
    jury: Jury | None = None
    """Members called to re-audit; None until they are drawn."""
    reaudits: dict[PeerId, Finding] = field(default_factory=dict)
    """What each re-audit finds."""


class ReputationTable(Restorable):
    """Audit state of all members after some round, and the votes of the epoch."""

    STATE = fields(
        _states=of(dict[PeerId, AuditState]),
        _disputes=of(dict[Audit, Dispute]),
        _audited=of(set[tuple[PeerId, int]]),
        _members=of(frozenset[PeerId]),
        epoch=of(EpochVotes),
        votes=of(Mapping[PeerId, int]),
        _baseline=part(ScoreBaseline),
        totals=of(AuditCounts),
        ended=of(tuple[tuple[Audit, DisputeEnding], ...]),
        contributions=part(Contributions),
    )

    def __init__(self, founder: PeerId, levels: LevelTest) -> None:
        """`founder` has the only vote at first. `levels` is the test of how high scores are."""
        self._founder = founder
        self._levels = levels
        # No liar can make up what re-audits have confirmed, so it may count as less.
        self._confirmed_levels = replace(levels, least=500)
        self._halves = halves_test(levels.deviation)
        self._states: dict[PeerId, AuditState] = {}
        self._disputes: dict[Audit, Dispute] = {}
        # (auditor, round) of the audits within the last `FRESH` rounds.
        self._audited: set[tuple[PeerId, int]] = set()
        self._members: frozenset[PeerId] = frozenset({founder})
        self.epoch = EpochVotes({founder: 1}, founder)
        """Votes of this epoch, of present and absent members."""
        self.votes: Mapping[PeerId, int] = self.epoch.earned
        """Votes of present members (`EpochVotes.present`)."""
        self._baseline = ScoreBaseline()
        self.totals = AuditCounts()
        """Totals of all audits."""
        self.ended: tuple[tuple[Audit, DisputeEnding], ...] = ()
        """Disputes that the last record ended."""
        self.contributions = Contributions()
        """Each member's counted work since the founding."""

    def copy(self) -> ReputationTable:
        """Return a copy that can grow independently."""
        made = copy(self)
        made._states = {peer: state.copy() for peer, state in self._states.items()}
        made._disputes = {
            low_audit: replace(dispute, reaudits=dict(dispute.reaudits))
            for low_audit, dispute in self._disputes.items()
        }
        made._audited = set(self._audited)
        return made

    def __getitem__(self, peer: PeerId) -> AuditState:
        """Return a member's state; an empty one if it has none."""
        return self._states.get(peer, AuditState())

    @property
    def founding(self) -> bool:
        """Whether the swarm is still in its founding."""
        return self.epoch.founder is not None

    @property
    def earned(self) -> Mapping[PeerId, int]:
        """Votes earned for this epoch (`EpochVotes.earned`)."""
        return self.epoch.earned

    def sums(self) -> dict[PeerId, AuditSums]:
        """Return the test sums of every member with state."""
        return {peer: state.sums for peer, state in self._states.items()}

    @property
    def disputes(self) -> Mapping[Audit, Dispute]:
        """Audits with a low score that are not settled yet."""
        return self._disputes

    def baseline_score(self, share: int) -> int:
        """Return this epoch's usual score for a share of `share` sequences."""
        return self._baseline.of(share)

    def bound(self, share: int) -> int:
        """Return this epoch's lowest passing score for a share of `share` sequences."""
        return passing(self.baseline_score(share))

    def updates_count(self, peer: PeerId) -> bool:
        """Whether the updates of `peer` enter the step."""
        return self[peer].sums.updates_count

    def excluded(self) -> frozenset[PeerId]:
        """Return the members whose updates do not enter the step."""
        return frozenset(
            peer for peer, state in self._states.items() if not state.sums.updates_count
        )

    def audit_probability(self, peer: PeerId, every: int) -> Fraction:
        """Return the probability that `peer` audits in a round. Members with votes audit once in `every`
        rounds on average, or less where votes are so uneven that one would audit more than once a round.

        It is proportional to votes; otherwise a crowd of identities with next to no votes would make
        nearly all audits. A member without votes audits nothing.
        """
        return audit_probability(self.votes, peer, every)

    def may_record_audit(self, auditor: PeerId, peer: PeerId, round_: int, now: int) -> bool:
        """Whether the record of round `now` may hold this auditor's audit of the update of `peer` in
        `round_`."""
        return (
            max(0, now - FRESH) < round_ < now
            and peer in self._states
            and (auditor, round_) not in self._audited
            and self._may_audit(auditor, peer)
        )

    def may_reaudit(self, reauditor: PeerId, low_audit: Audit) -> bool:
        """Whether this dispute is open and still expects a re-audit by `reauditor`."""
        return reauditor in self.pending_reauditors(low_audit) and self._may_audit(
            reauditor, low_audit.peer
        )

    def pending_reauditors(self, low_audit: Audit) -> frozenset[PeerId]:
        """Return the members called to re-audit that have not done so. The first auditor may be among
        them, the audited member is not. Empty if no such dispute is open or none is called yet."""
        dispute = self._disputes.get(low_audit)
        if dispute is None or dispute.jury is None:
            return frozenset()
        return frozenset(dispute.jury.weights) - dispute.reaudits.keys() - {low_audit.peer}

    def close(self, work: RecordedWork, members: Collection[PeerId]) -> None:
        """Apply the next record; `members` are the members of the round after it.

        The caller has checked that audits are the drawn ones and that signatures are valid.
        """
        self.ended = ()
        counted: dict[PeerId, int] = {}
        newly_audited: Counter[PeerId] = Counter()
        for peer, sequences in work.shares.items():
            state = self._states.setdefault(peer, AuditState())
            state.last_round = work.round
            if state.sums.updates_count:
                state.waiting.append((work.round, sequences))
                counted[peer] = sequences
        for audit in work.audits:
            if self.may_record_audit(audit.auditor, audit.peer, audit.round, work.round):
                newly_audited[audit.peer] += self._apply_audit(audit, work.round)
        self.contributions = self.contributions.after(counted, newly_audited)
        for reaudit in work.reaudits:
            if self.may_reaudit(reaudit.reauditor, reaudit.low_audit):
                self._apply_reaudit(reaudit)
        for low_audit, dispute in list(self._disputes.items()):
            if dispute.since + OPEN_ROUNDS <= work.round:
                self._end(low_audit, "dropped")
        present = frozenset(members)
        if present != self._members:
            self._members, self.votes = present, self.epoch.present(present)
        if (work.round + 1) % EPOCH_ROUNDS == 0:
            self._begin_epoch(work.round + 1)
        for low_audit, dispute in self._disputes.items():
            if dispute.since + DRAW_LAG_ROUNDS == work.round:
                dispute.jury = self._call(low_audit, work.beacon)

    def _call(self, low_audit: Audit, beacon: bytes) -> Jury:
        """Draw the members that re-audit this low audit. Members accused of false audits take no
        part."""
        voters = {
            peer: votes
            for peer, votes in self.votes.items()
            if peer == low_audit.peer or not self[peer].sums.own_audits.accused
        }
        return draw_jury(voters, low_audit.name + beacon)

    def _apply_audit(self, audit: Audit, now: int) -> int:
        """Apply an audit and return the number of sequences it vouches for."""
        state = self._states[audit.peer]
        self._audited.add((audit.auditor, audit.round))
        state.audited += 1
        if (auditor_state := self._states.get(audit.auditor)) is not None:
            auditor_state.audits_made += 1
            # Scores of members without votes set no baseline once others can: one identity without work
            # would fill the auditors' latest scores with low ones.
            if self.founding or audit.peer in self.earned:
                auditor_state.scores.append(audit.sample)
        bound = self.bound(audit.share)
        low = audit.score < bound
        self.totals = self.totals.after_audit(low=low)
        if low:
            state.low += 1
            self._disputes[audit] = Dispute(now, bound)
            return 0
        self._score(state, audit, self._levels)
        if (halves := self._baseline.halves(audit.sample)) is not None:
            state.sums = state.sums.halved(self._halves, halves)
        state.sums = state.sums.audited(failed=False)
        sequences = state.vouch(audit.round, audit.auditor)
        self._note_settlement(audit.auditor, contradicted=False)
        return sequences

    def _apply_reaudit(self, reaudit: Reaudit) -> None:
        dispute = self._disputes[reaudit.low_audit]
        dispute.reaudits[reaudit.reauditor] = reaudit.finding
        self.totals = self.totals.note_reaudit()
        assert dispute.jury is not None
        settled = outcome(dispute.jury, dispute.reaudits, reaudit.low_audit.peer)
        if settled != "open":
            self._end(reaudit.low_audit, settled)
            self._settle(reaudit.low_audit, settled)

    def _end(self, low_audit: Audit, ending: DisputeEnding) -> None:
        del self._disputes[low_audit]
        self.totals = self.totals.after_dispute(ending)
        self.ended = (*self.ended, (low_audit, ending))

    def _settle(self, low_audit: Audit, settled: Outcome) -> None:
        state = self._states.get(low_audit.peer)
        failed = settled == "failed"
        if state is not None:
            state.sums = state.sums.audited(failed=failed)
            if settled != "contradicted":
                # A low score is added only now that re-audits have confirmed it: otherwise a few false
                # audits by a single liar would accuse the member.
                self._score(state, low_audit, self._confirmed_levels)
            if failed:
                state.failed += 1
                state.waiting.clear()
                if low_audit.peer not in self.earned:
                    state.sums = state.sums.dismissed()
                    state.dismissed = True
                    self._drop_disputes(low_audit.peer)
            if not state.sums.updates_count:
                state.vouched.clear()
        self._note_settlement(low_audit.auditor, contradicted=settled == "contradicted")

    def _drop_disputes(self, peer: PeerId) -> None:
        """End all other disputes about a member that is dismissed: nothing follows from them any more,
        and those about others are settled sooner."""
        for low_audit in [each for each in self._disputes if each.peer == peer]:
            self._end(low_audit, "dropped")

    def _score(self, state: AuditState, audit: Audit, test: LevelTest) -> None:
        """Add an undisputed score to the level test, if members with such a share set a baseline for
        it."""
        usual = self.baseline_score(audit.share)
        if usual and self._baseline.has_similar(audit.share):
            state.sums = state.sums.scored(test, level(audit.score, usual))

    def _note_settlement(self, auditor: PeerId, *, contradicted: bool) -> None:
        """Add to the auditor's test sum whether re-audits contradicted its audit."""
        if (state := self._states.get(auditor)) is not None:
            state.sums = state.sums.audited_another(contradicted=contradicted)

    def _may_audit(self, reauditor: PeerId, peer: PeerId) -> bool:
        return (
            reauditor != peer
            and reauditor in self.votes
            and not self[reauditor].sums.own_audits.accused
        )

    def _begin_epoch(self, round_: int) -> None:
        voters = self.votes
        self._audited = {audit for audit in self._audited if audit[1] > round_ - FRESH}
        for peer, state in list(self._states.items()):
            # The founder of a swarm works alone at first. Later somebody alone would gain on all others.
            if self.founding and peer == self._founder and len(voters) == 1 and peer in voters:
                state.vouch(round_, None)
            state.forget(round_)
            if state.sums.own_audits.accused:
                # An accused auditor may not audit, so each epoch counts as an audit that was not
                # contradicted: otherwise it could never be cleared.
                state.sums = state.sums.audited_another(contradicted=False)
            if not state.work and state.last_round <= round_ - WINDOW:
                del self._states[peer]
        earned = {peer: self._earned(peer, state) for peer, state in self._states.items()}
        earned = {peer: votes for peer, votes in earned.items() if votes > 0}
        self.epoch = self._next_epoch(earned, round_)
        self.votes = self.epoch.present(self._members)
        self._baseline = ScoreBaseline(
            [(tuple(self[peer].scores), votes) for peer, votes in sorted(self.votes.items())]
        )

    def _earned(self, peer: PeerId, state: AuditState) -> int:
        # Vouchers are required only for the first votes. Otherwise a member for which few could vouch
        # would lose its votes as soon as there are more voters.
        known = peer in self.earned or self._is_vouched_for(peer, state)
        return state.work if known and state.sums.credible else 0

    def _is_vouched_for(self, peer: PeerId, state: AuditState) -> bool:
        others = {voter: votes for voter, votes in self.votes.items() if voter != peer}
        vouching = sum(others.get(voter, 0) for voter in state.vouchers)
        return len(state.vouchers) >= VOUCHERS or 3 * vouching > sum(others.values())

    def _next_epoch(self, earned: dict[PeerId, int], round_: int) -> EpochVotes:
        """Return the votes of the epoch that begins with `round_`, given those `earned` by work; it is
        the first after the founding if enough members have some."""
        # If no member has earned any, the previous voters keep theirs: someone must audit.
        deciding = self.epoch.deciding(self._members)
        if deciding and not self.founding:
            return EpochVotes(earned or self.earned)
        work = {
            peer: done
            for peer, state in sorted(self._states.items())
            if (done := state.work_since(round_ - EPOCH_ROUNDS))
        }
        if self._are_enough(earned, work):
            return EpochVotes(earned)
        if not deciding:
            # All count alike, and the first to be vouched for could all be liars.
            earned = {peer: votes for peer, votes in earned.items() if peer in self.earned}
        if not self.founding:
            return EpochVotes(earned or self.earned)
        founder = self._founder
        work.pop(founder, None)
        if self[founder].sums.credible:
            others = sum(votes for peer, votes in earned.items() if peer != founder)
            earned = earned | {founder: max(earned.get(founder, 0), 2 * others + 1)}
        return EpochVotes(earned or self.earned, founder, work)

    def _are_enough(self, earned: Mapping[PeerId, int], work: Mapping[PeerId, int]) -> bool:
        """Whether the members with these votes do more than two thirds of the `work` of the last epoch,
        and neither one of them nor any that do less than a third of it have nine twentieths of the
        votes, the founder's left out.

        Work is compared, not heads, so that a crowd that does little neither ends the founding nor
        prolongs it. Members that came first have more votes than they do of the work, and without the
        second condition they would decide while the founder is away. Not half, because those that vouch
        for each other alone still gain a little on the others at first."""
        present = self._members.intersection(earned)
        done = {peer: work.get(peer, 0) for peer in self._members}
        if len(present) < MIN_VOTERS or 3 * sum(done[p] for p in present) <= 2 * sum(done.values()):
            return False
        others = sorted(
            present - {self._founder}, key=lambda peer: (-earned[peer], done[peer], peer)
        )
        whole = with_founder(count for peer, count in done.items() if peer != self._founder)
        part = held = 0
        for peer in others:
            if 3 * (part + done[peer]) < whole:
                part, held = part + done[peer], held + earned[peer]
        return 20 * max(held, earned[others[0]]) < 9 * sum(earned[peer] for peer in others)


def audit_probability(votes: Mapping[PeerId, int], peer: PeerId, every: int) -> Fraction:
    """Return the result of `ReputationTable.audit_probability` for these votes."""
    total = sum(votes.values())
    if not total:
        return Fraction(0)
    # If the member with most votes would have to audit more than once a round, all audit less: otherwise
    # the others made more of the audits than they have votes.
    return Fraction(
        votes.get(peer, 0) * len(votes), max(total * every, max(votes.values()) * len(votes))
    )
