"""Reputation events are reported once, when a record causes them, with the reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.audit.audit_sums import WORK_TEST, level_test
from distro_node.protocol.audit.counts import AuditCounts
from distro_node.protocol.audit.disputes import DRAW_LAG_ROUNDS, OPEN_ROUNDS
from distro_node.protocol.audit.reputation import (
    EPOCH_ROUNDS,
    VOUCHERS,
    Audit,
    Reaudit,
    RecordedWork,
    ReputationTable,
)
from distro_node.protocol.audit.reputation_events import (
    ReputationEvent,
    reputation_events,
    take_snapshot,
    why_no_votes,
)
from distro_node.protocol.audit.verdict import MIN_AUDITS, MIN_HALF_SCORES

GOOD, LOW, SHARE = 15_000, 500, 4
LEVELS = level_test(250)
PEERS = [PeerId(content_id(b"member %d" % number)) for number in range(9)]
FOUNDER, ANN, BEN, NEW = PEERS[0], PEERS[1], PEERS[2], PEERS[8]


class Run:
    """Consecutive records of a swarm, and the events of each."""

    def __init__(self, peers: Iterable[PeerId]) -> None:
        self.accounts = ReputationTable(FOUNDER, LEVELS)
        self.peers = list(peers)
        self.told: list[ReputationEvent] = []
        self.round = 0

    def close(self, *audits: Audit, again: tuple[Reaudit, ...] = ()) -> None:
        before = take_snapshot(self.accounts)
        shares = dict.fromkeys(self.peers, SHARE)
        self.accounts.close(RecordedWork(self.round, shares, audits, again), self.peers)
        self.told += reputation_events(before, self.accounts, self.round)
        self.round += 1

    def audits(self, auditor: PeerId, *peers: PeerId, score: int = GOOD) -> None:
        """Record each audit, of the round before, in a record of its own."""
        for peer in peers:
            self.close(Audit(auditor, peer, self.round - 1, SHARE, score))

    def to_epoch(self) -> None:
        """Advance to the beginning of the next epoch."""
        self.close()
        while self.round % EPOCH_ROUNDS:
            self.close()

    def settle(self, first: Audit, low: bool) -> None:
        """Record the audit, and then every re-audit."""
        self.close(first)
        for _ in range(DRAW_LAG_ROUNDS):
            self.close()
        others = sorted(self.accounts.pending_reauditors(first))
        self.close(again=tuple(Reaudit(peer, first, low) for peer in others))


@pytest.fixture
def run() -> Run:
    """Return a swarm of eight members, all with votes."""
    run = Run(PEERS[:8])
    run.close()
    run.audits(FOUNDER, *PEERS[1:8])
    run.to_epoch()
    for number, peer in enumerate(PEERS[:8]):
        run.audits(peer, *(PEERS[(number + step) % 8] for step in range(1, MIN_AUDITS + 1)))
    run.to_epoch()
    assert set(run.accounts.votes) == set(PEERS[:8])
    return run


def told(run: Run, act: Callable[[], None]) -> list[ReputationEvent]:
    """Return all events during an action."""
    run.told.clear()
    act()
    return list(run.told)


def fail(run: Run, peer: PeerId, low: bool = True) -> None:
    run.settle(Audit(FOUNDER if peer != FOUNDER else ANN, peer, run.round - 1, SHARE, LOW), low)


def test_a_quiet_record_changes_nothing(run: Run) -> None:
    assert told(run, run.close) == []
    assert told(run, lambda: run.audits(ANN, BEN)) == []


def test_an_excluded_member_has_an_event_for_each_step(run: Run) -> None:
    audited = run.round - 1
    assert told(run, lambda: fail(run, BEN)) == [
        ReputationEvent("audit_low", BEN, str(audited)),
        ReputationEvent("audit_failed", BEN, str(audited)),
    ]
    found = []
    while run.accounts.updates_count(BEN):
        found += told(run, lambda: fail(run, BEN))
    assert found[-1] == ReputationEvent("excluded", BEN, "failed")
    assert why_no_votes(run.accounts, BEN) == "failed"
    assert told(run, run.to_epoch)[-1] == ReputationEvent("votes_lost", BEN, "failed")
    assert BEN not in run.accounts.votes
    # It fails again: no new event, except that it is re-audited.
    assert {change.kind for change in told(run, lambda: fail(run, BEN))} == {"audit_low"}


def test_who_passes_the_stated_number_of_audits_counts_again(run: Run) -> None:
    while run.accounts.updates_count(BEN):
        fail(run, BEN)
    needed = run.accounts[BEN].sums.passes_until_counted
    assert needed == -(-WORK_TEST.accuse_at // -WORK_TEST.success)
    found = told(run, lambda: run.audits(FOUNDER, *[BEN] * (needed - 1)))
    assert "reinstated" not in {change.kind for change in found}
    assert run.accounts[BEN].sums.passes_until_counted == 1
    assert told(run, lambda: run.audits(FOUNDER, BEN))[0] == ReputationEvent("reinstated", BEN)
    assert run.accounts[BEN].sums.passes_until_counted == 0


def test_a_contradicted_audit_is_an_event_of_its_auditor(run: Run) -> None:
    found = told(run, lambda: fail(run, BEN, low=False))
    assert ReputationEvent("contradicted", FOUNDER, str(run.round - 3 - DRAW_LAG_ROUNDS)) in found
    assert "audit_failed" not in {change.kind for change in found}
    while not run.accounts[FOUNDER].sums.own_audits.accused:
        found = told(run, lambda: fail(run, BEN, low=False))
    assert ReputationEvent("distrusted", FOUNDER) in found
    assert why_no_votes(run.accounts, FOUNDER) == "contradicted"


def test_votes_are_an_event_when_an_epoch_begins(run: Run) -> None:
    run.peers.append(NEW)
    run.close()
    assert why_no_votes(run.accounts, NEW) == "unconfirmed"
    assert why_no_votes(run.accounts, BEN) is None
    for auditor in PEERS[:VOUCHERS]:
        assert told(run, lambda auditor=auditor: run.audits(auditor, NEW)) == []
    assert told(run, run.to_epoch) == [ReputationEvent("votes_gained", NEW)]


def test_low_scores_are_an_event(run: Run) -> None:
    usual = run.accounts.baseline_score(SHARE)
    found: list[ReputationEvent] = []
    for _ in range(60):
        found += told(run, lambda: run.audits(ANN, BEN, score=usual * 6 // 10))
        if run.accounts[BEN].sums.level.accused:
            break
    assert ReputationEvent("scores_low", BEN) in found
    assert why_no_votes(run.accounts, BEN) == "scores"


def test_a_missing_half_is_an_event(run: Run) -> None:
    def audit(peer: PeerId, beginning: int, auditor: PeerId = ANN) -> None:
        run.close(Audit(auditor, peer, run.round - 1, SHARE, GOOD, beginning))

    for number, auditor in enumerate(PEERS[:8] * MIN_HALF_SCORES):
        audit(PEERS[(number + 1) % 8], GOOD * 8 // 10, auditor)
    run.to_epoch()
    found: list[ReputationEvent] = []
    for _ in range(30):
        found += told(run, lambda: audit(BEN, GOOD * 13 // 10))
        if not run.accounts[BEN].sums.complete:
            break
    assert found[-1] == ReputationEvent("halves_missing", BEN)
    assert why_no_votes(run.accounts, BEN) == "halves"
    assert told(run, run.to_epoch)[-1] == ReputationEvent("votes_lost", BEN, "halves")


def test_totals_count_audits_and_disputes(run: Run) -> None:
    before = run.accounts.totals
    assert before.low == 0
    fail(run, BEN)
    fail(run, ANN, low=False)
    run.close(Audit(BEN, ANN, run.round - 1, SHARE, LOW))
    for _ in range(OPEN_ROUNDS):
        run.close()
    after = run.accounts.totals
    assert (after.low, after.passed) == (3, before.passed)
    assert (after.failed, after.contradicted, after.dropped) == (1, 1, 1)
    # Each is settled once a majority of all votes has answered.
    assert 6 <= after.reaudits - before.reaudits <= 10
    account = run.accounts[BEN]
    assert (account.low, account.failed) == (1, 1)
    assert account.audits_made == MIN_AUDITS + 1


def test_what_grows_in_another_way_is_counted_for_itself(run: Run) -> None:
    other = run.accounts.copy()
    totals, audits = other.totals, other[ANN].audits_made
    run.audits(ANN, BEN)
    assert (other.totals, other[ANN].audits_made) == (totals, audits)
    assert isinstance(totals, AuditCounts)
    assert run.accounts.totals.audits == totals.audits + 1


@pytest.mark.parametrize("members", [1000])
def test_a_thousand_members_are_compared_at_once(members: int) -> None:
    crowd = [PeerId(content_id(b"crowd %d" % number)) for number in range(members)]
    accounts = ReputationTable(FOUNDER, LEVELS)
    for round_ in range(EPOCH_ROUNDS):
        accounts.close(RecordedWork(round_, dict.fromkeys(crowd, SHARE)), crowd)
    times = []
    for round_ in range(EPOCH_ROUNDS, 2 * EPOCH_ROUNDS):
        begun = time.process_time()
        before = take_snapshot(accounts)
        times.append(time.process_time() - begun)
        accounts.close(RecordedWork(round_, dict.fromkeys(crowd, SHARE)), crowd)
        begun = time.process_time()
        assert reputation_events(before, accounts, round_) == []
        times[-1] += time.process_time() - begun
    # It takes about a tenth of a millisecond; the bound allows for slow machines, and catches quadratic
    # time.
    assert sorted(times)[len(times) // 2] < 0.02
