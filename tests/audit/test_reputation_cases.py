"""Rules of accounts: what earns votes, what takes them, and how disputed audits end."""

from __future__ import annotations

from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.audit.audit_sums import level_test
from distro_node.protocol.audit.disputes import DRAW_LAG_ROUNDS, OPEN_ROUNDS
from distro_node.protocol.audit.reputation import (
    EPOCH_ROUNDS,
    FRESH,
    WINDOW,
    Audit,
    Reaudit,
    RecordedWork,
    ReputationTable,
)
from distro_node.protocol.audit.verdict import (
    MIN_HALF_SCORES,
)

# Private here: `_states`, `_audited`: what is kept is counted.

GOOD, LOW = 15_000, 500
PEERS = [PeerId(content_id(b"member %d" % number)) for number in range(12)]
FOUNDER, ANN, BEN, CAT = PEERS[:4]


class _Run:
    """Consecutive rounds in which all members do their share."""

    def __init__(self, count: int = 4, deviation: int = 250) -> None:
        self.accounts = ReputationTable(FOUNDER, level_test(deviation))
        self.members = PEERS[:count]
        self.shares = dict.fromkeys(self.members, 4)
        self.round = 0
        # Round 0 has nothing to audit.
        self.close()

    def close(self, *audits: Audit, again: tuple[Reaudit, ...] = ()) -> None:
        self.accounts.close(RecordedWork(self.round, self.shares, audits, again), self.members)
        self.round += 1

    def audit(
        self, auditor: PeerId, peer: PeerId, score: int = GOOD, beginning: int | None = None
    ) -> Audit:
        """Return an audit of the last round."""
        return Audit(auditor, peer, self.round - 1, 4, score, beginning)

    def to_epoch(self) -> None:
        """Advance to the beginning of the next epoch."""
        self.close()
        while self.round % EPOCH_ROUNDS:
            self.close()

    def quiet(self, rounds: int) -> None:
        for _ in range(rounds):
            self.close()

    def settled(self) -> _Run:
        """Advance until all members have votes."""
        self.close()
        for peer in self.members[1:]:
            self.close(self.audit(FOUNDER, peer))
        self.to_epoch()
        # Twice, so that all have audited often enough to set what is usual.
        for auditor in self.members * 2:
            for peer in self.members:
                if peer != auditor:
                    self.close(self.audit(auditor, peer))
        self.to_epoch()
        assert set(self.accounts.votes) == set(self.members)
        return self

    def dispute(self, auditor: PeerId, peer: PeerId, *, low: bool) -> None:
        """Record a low audit and the re-audits of all others."""
        first = self.audit(auditor, peer, LOW)
        self.close(first)
        self.quiet(DRAW_LAG_ROUNDS)
        others = sorted(self.accounts.pending_reauditors(first))
        self.close(again=tuple(Reaudit(other, first, low) for other in others))

    def votes(self, peer: PeerId) -> int:
        return self.accounts.votes.get(peer, 0)


def test_once_is_enough() -> None:
    """The founder vouched for all while it was alone, and no member has since."""
    run = _Run(8)
    run.close()
    for peer in run.members[1:]:
        run.close(run.audit(FOUNDER, peer))
    run.to_epoch()
    run.to_epoch()
    assert len(run.accounts.votes) == 8


def test_one_audit_a_round() -> None:
    run = _Run()
    run.close()
    run.close(run.audit(FOUNDER, ANN))
    assert not run.accounts.may_record_audit(FOUNDER, BEN, run.round - 2, run.round)


def test_recorded_audits_are_dropped() -> None:
    run = _Run().settled()
    for _ in range(4 * EPOCH_ROUNDS):
        run.close(run.audit(ANN, BEN))
    assert len(run.accounts._audited) <= EPOCH_ROUNDS + FRESH


def test_a_low_audit_accuses_nobody() -> None:
    run = _Run().settled()
    before = run.accounts[BEN].sums.work
    run.close(run.audit(ANN, BEN, LOW))
    assert run.accounts[BEN].sums.work == before


def test_contradicted_audits_count_for_no_level() -> None:
    """Several liars, each until it is found out, would otherwise take a member's votes."""
    run = _Run().settled()
    before = run.accounts[BEN].sums.level.sum
    run.dispute(CAT, BEN, low=False)
    assert run.accounts[BEN].sums.level.sum <= before


def test_what_others_confirm_counts_for_the_level() -> None:
    run = _Run().settled()
    before = run.accounts[BEN].sums.level.sum
    run.dispute(CAT, BEN, low=True)
    assert run.accounts[BEN].sums.level.sum > before


def test_a_dispute_is_dropped() -> None:
    run = _Run().settled()
    run.close(run.audit(ANN, BEN, LOW))
    run.quiet(OPEN_ROUNDS)
    assert not run.accounts.disputes


def test_what_does_not_count_does_not_wait() -> None:
    run = _Run()
    run.close()
    run.dispute(FOUNDER, ANN, low=True)
    run.quiet(3)
    assert not run.accounts[ANN].waiting


def test_the_reputation_of_the_idle_is_dropped() -> None:
    """A crowd comes and goes without working."""
    run = _Run()
    run.shares = dict.fromkeys(PEERS, 4)
    run.close()
    run.shares = {FOUNDER: 4}
    run.quiet(WINDOW)
    run.to_epoch()
    assert set(run.accounts._states) == {FOUNDER}


def test_what_is_usual_is_what_was_of_late() -> None:
    run = _Run().settled()
    for score in (*[GOOD] * 40, *[9_000] * 20):
        run.close(*(run.audit(FOUNDER, peer, score) for peer in (ANN,)))
    assert {seen.score for seen in run.accounts[FOUNDER].scores} == {9_000}


def _audited_in_halves(beginning: int, score: int = GOOD) -> _Run:
    """All first halves score eight tenths of the whole, except BEN's for a while."""
    run = _Run().settled()
    for number, auditor in enumerate(run.members * MIN_HALF_SCORES):
        peer = run.members[(number + 1) % len(run.members)]
        run.close(run.audit(auditor, peer, beginning=GOOD * 8 // 10))
    run.to_epoch()
    for _ in range(20):
        run.close(run.audit(FOUNDER, BEN, score, beginning))
    return run


def test_who_computes_beginnings_alone_has_no_votes() -> None:
    assert not _audited_in_halves(GOOD * 13 // 10).accounts[BEN].sums.credible


def test_who_computes_ends_alone_has_no_votes() -> None:
    assert not _audited_in_halves(GOOD * 2 // 10).accounts[BEN].sums.credible


def test_a_missing_half_takes_no_updates() -> None:
    assert _audited_in_halves(GOOD * 13 // 10).accounts.updates_count(BEN)


def test_one_half_is_as_well_known_as_is_usual() -> None:
    assert _audited_in_halves(GOOD * 8 // 10).accounts[BEN].sums.credible


def test_a_few_lies_about_a_half_take_nobodys_votes() -> None:
    run = _audited_in_halves(GOOD * 8 // 10)
    for _ in range(4):
        run.close(run.audit(CAT, BEN, beginning=1 << 60))
    assert run.accounts[BEN].sums.credible


def test_scores_that_just_pass_take_nobodys_votes() -> None:
    """Liars may report them for any member, since they are not re-audited."""
    run = _Run().settled()
    for _ in range(20):
        run.close(run.audit(CAT, BEN, GOOD * 55 // 100))
    assert run.accounts[BEN].sums.credible
