"""Votes follow from vouched work; members that cheat, in their work or in audits, lose them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fractions import Fraction

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.audit.audit_sums import level_test
from distro_node.protocol.audit.disputes import DRAW_LAG_ROUNDS, REAUDIT_ROUNDS
from distro_node.protocol.audit.reputation import (
    EPOCH_ROUNDS,
    FRESH,
    WINDOW,
    Audit,
    Reaudit,
    RecordedWork,
    ReputationTable,
    at_most_a_third,
    audit_probability,
)
from distro_node.protocol.audit.verdict import MIN_AUDITS

GOOD, LOW = 15_000, 500
LEVELS = level_test(250)
PEERS = [PeerId(content_id(b"member %d" % number)) for number in range(12)]
FOUNDER, ANN, BEN, NEW = PEERS[0], PEERS[1], PEERS[2], PEERS[11]
SHARE = 4


class Run:
    """Consecutive rounds of a swarm."""

    def __init__(self, shares: Mapping[PeerId, int]) -> None:
        self.accounts = ReputationTable(FOUNDER, LEVELS)
        self.away: Collection[PeerId] = ()
        self.shares = shares
        # Round 0 has no training, and what counts in round 1 is audited from then on.
        self.accounts.close(RecordedWork(0, {}), PEERS)
        self.round = 1
        self.close()

    def close(self, *audits: Audit, again: tuple[Reaudit, ...] = ()) -> None:
        shares = {peer: share for peer, share in self.shares.items() if peer not in self.away}
        facts = RecordedWork(self.round, shares, audits, again)
        self.accounts.close(facts, [peer for peer in PEERS if peer not in self.away])
        self.round += 1

    def audit(self, auditor: PeerId, peer: PeerId, score: int = GOOD) -> Audit:
        """Return an audit of the last round."""
        return Audit(auditor, peer, self.round - 1, self.shares.get(peer, SHARE), score)

    def audits(self, auditor: PeerId, *peers: PeerId, score: int = GOOD) -> None:
        """Record each audit in a round of its own."""
        for peer in peers:
            self.close(self.audit(auditor, peer, score))

    def to_epoch(self) -> None:
        """Advance to the beginning of the next epoch."""
        self.close()
        while self.round % EPOCH_ROUNDS:
            self.close()

    def settle(self, first: Audit, low: bool) -> None:
        """Record the audit, and then every re-audit."""
        self.call(first)
        reauditors = sorted(self.accounts.pending_reauditors(first))
        self.close(again=tuple(Reaudit(peer, first, low) for peer in reauditors))

    def call(self, *firsts: Audit) -> None:
        """Record the audits, and then the rounds until re-auditors are called."""
        self.close(*firsts)
        for _ in range(DRAW_LAG_ROUNDS):
            self.close()


@pytest.fixture
def run() -> Run:
    """Return a swarm of eight members with votes, in their second epoch with any."""
    run = Run(dict.fromkeys(PEERS[:8], SHARE))
    run.audits(FOUNDER, *PEERS[1:8])
    run.to_epoch()
    assert set(run.accounts.votes) == set(PEERS[:8])
    for number, peer in enumerate(PEERS[:8]):
        run.audits(peer, *(PEERS[(number + step) % 8] for step in range(1, MIN_AUDITS + 1)))
    run.to_epoch()
    return run


def test_the_founder_is_alone_until_it_has_vouched_for_somebody() -> None:
    run = Run({FOUNDER: 4, ANN: 2, BEN: 1})
    run.to_epoch()
    run.to_epoch()
    assert dict(run.accounts.votes) == {FOUNDER: 4 * (2 * EPOCH_ROUNDS - 1)}
    run.audits(FOUNDER, ANN)
    # Not before the next epoch, and for all her work up to the audited round.
    assert set(run.accounts.votes) == {FOUNDER}
    run.to_epoch()
    assert run.accounts.votes == {
        FOUNDER: 4 * (3 * EPOCH_ROUNDS - 1),
        ANN: 2 * (2 * EPOCH_ROUNDS - 1),
    }


def test_votes_are_the_work_that_is_vouched_for(run: Run) -> None:
    before = dict(run.accounts.votes)
    run.audits(ANN, BEN)
    run.to_epoch()
    after = run.accounts.votes
    assert after[BEN] > before[BEN]
    assert {peer for peer in after if after[peer] != before[peer]} == {BEN}


def test_as_one_member_or_as_many_the_votes_are_the_same() -> None:
    def hostile_votes(identities: int) -> Fraction:
        crowd = PEERS[:0:-1][:identities]
        run = Run({FOUNDER: 90, **dict.fromkeys(crowd, 22 // identities)})
        for _ in range(2):
            at = run.round
            # All audits in one round.
            run.close()
            for peer in crowd:
                run.close(run.audit(FOUNDER, peer))
            while run.round < at + 4 * EPOCH_ROUNDS:
                run.close()
        run.audits(FOUNDER, *crowd)
        run.to_epoch()
        votes = {peer: run.accounts[peer].work for peer in (FOUNDER, *crowd)}
        return Fraction(sum(votes.get(peer, 0) for peer in crowd), sum(votes.values()))

    # Except for the rounds in which each is last audited.
    assert hostile_votes(11) <= hostile_votes(1) * Fraction(11, 10)


@pytest.mark.parametrize("behind", range(-1, FRESH + 2))
def test_an_audit_is_recorded_in_the_records_after_its_round(run: Run, behind: int) -> None:
    allowed = run.accounts.may_record_audit(ANN, BEN, run.round - behind, run.round)
    assert allowed == (1 <= behind < FRESH)


def test_nothing_is_audited_in_round_0() -> None:
    accounts = Run({FOUNDER: SHARE, ANN: SHARE}).accounts
    assert not accounts.may_record_audit(FOUNDER, ANN, 0, 2)
    assert accounts.may_record_audit(FOUNDER, ANN, 1, 2)


@pytest.mark.parametrize("why", ["of itself", "no votes", "nobody", "old", "to come", "twice"])
def test_invalid_audits_change_nothing(run: Run, why: str) -> None:
    now = run.round
    if why == "twice":
        run.close(Audit(ANN, FOUNDER, now - 1, SHARE, GOOD))
    audit = {
        "of itself": Audit(ANN, ANN, now - 1, SHARE, GOOD),
        "no votes": Audit(NEW, ANN, now - 1, SHARE, GOOD),
        "nobody": Audit(ANN, NEW, now - 1, SHARE, GOOD),
        "old": Audit(ANN, BEN, now - FRESH, SHARE, GOOD),
        "to come": Audit(ANN, BEN, now, SHARE, GOOD),
        "twice": Audit(ANN, BEN, now - 1, SHARE, GOOD),
    }[why]
    peer = audit.peer
    before = (
        run.accounts[peer].work,
        run.accounts[peer].sums,
        list(run.accounts[peer].scores),
    )
    run.close(audit)
    account = run.accounts[peer]
    assert (account.work, account.sums, list(account.scores)) == before


def test_a_failure_takes_what_waits_and_three_take_the_votes(run: Run) -> None:
    votes = dict(run.accounts.votes)
    for _ in range(2):
        run.settle(run.audit(ANN, BEN, LOW), low=True)
        assert run.accounts.updates_count(BEN)
    assert run.accounts[BEN].work == votes[BEN]
    # Except for the round that recorded it.
    assert len(run.accounts[BEN].waiting) <= 1
    run.settle(run.audit(FOUNDER, BEN, LOW), low=True)
    assert not run.accounts.updates_count(BEN)
    run.to_epoch()
    assert BEN not in run.accounts.votes
    # Its later work is never vouched for.
    run.audits(ANN, BEN)
    assert run.accounts[BEN].work == 0


def test_of_a_stranger_one_failure_is_enough(run: Run) -> None:
    run.shares = {**run.shares, NEW: 4}
    run.close()
    assert run.accounts.updates_count(NEW)
    run.settle(run.audit(ANN, NEW, LOW), low=True)
    assert not run.accounts.updates_count(NEW)


def test_audits_of_who_accuses_the_honest_stop_counting(run: Run) -> None:
    accused = [peer for peer in PEERS[:8] if peer != ANN] * 3
    for peer in accused:
        run.settle(run.audit(ANN, peer, LOW), low=False)
    assert all(run.accounts[peer].sums.credible for peer in accused)
    assert not run.accounts[ANN].sums.credible
    assert run.accounts.updates_count(ANN)
    run.to_epoch()
    assert ANN not in run.accounts.votes
    # It may not audit, so only time restores its credibility.
    for _ in range(30):
        run.to_epoch()
    assert run.accounts[ANN].sums.credible
    assert ANN in run.accounts.votes


def test_liars_with_a_third_settle_nothing(run: Run) -> None:
    first = run.audit(ANN, BEN, LOW)
    run.call(first)
    liars = [ANN, *sorted(run.accounts.votes.keys() - {ANN, BEN})[:1]]
    again = tuple(Reaudit(peer, first, True) for peer in liars)
    # Duplicates count once, and the audited member itself has no part in it.
    run.close(again=(*again, *again, Reaudit(BEN, first, False)))
    assert list(run.accounts.disputes) == [first]
    for _ in range(REAUDIT_ROUNDS):
        run.close()
    assert not list(run.accounts.disputes)
    assert run.accounts[BEN].sums.work.sum <= 0


def test_nobody_reaudits_before_the_draw(run: Run) -> None:
    first = run.audit(ANN, BEN, LOW)
    run.close(first)
    for _ in range(DRAW_LAG_ROUNDS):
        assert not any(run.accounts.may_reaudit(peer, first) for peer in PEERS)
        run.close()
    assert run.accounts.pending_reauditors(first) == run.accounts.votes.keys() - {BEN}


def test_a_dispute_is_settled_at_any_time_when_all_agree(run: Run) -> None:
    """Whichever leader leaves re-audits out can do so only while it leads."""
    first = run.audit(ANN, BEN, LOW)
    run.call(first)
    for _ in range(REAUDIT_ROUNDS - 1):
        run.close()
    reauditors = sorted(run.accounts.pending_reauditors(first))
    run.close(again=tuple(Reaudit(peer, first, low=False) for peer in reauditors))
    assert [ending for _, ending in run.accounts.ended] == ["contradicted"]


def test_an_auditor_that_is_not_believed_is_not_drawn(run: Run) -> None:
    while not run.accounts[ANN].sums.own_audits.accused:
        run.settle(run.audit(ANN, BEN, LOW), low=False)
    first = run.audit(FOUNDER, BEN, LOW)
    run.call(first)
    assert ANN not in run.accounts.pending_reauditors(first)


def test_who_is_away_has_no_votes_and_has_them_again(run: Run) -> None:
    before = dict(run.accounts.votes)
    run.away = {BEN}
    run.close()
    assert run.accounts.votes == {peer: votes for peer, votes in before.items() if peer != BEN}
    assert run.accounts.audit_probability(BEN, 1) == 0
    assert not run.accounts.may_record_audit(BEN, ANN, run.round - 1, run.round)
    run.to_epoch()
    run.to_epoch()
    assert BEN not in run.accounts.votes
    run.away = ()
    run.close()
    assert run.accounts.votes[BEN] == before[BEN]
    assert run.accounts.may_record_audit(BEN, ANN, run.round - 1, run.round)


def test_who_was_accused_comes_back_accused(run: Run) -> None:
    for auditor in (ANN, FOUNDER, PEERS[3]):
        run.settle(run.audit(auditor, BEN, LOW), low=True)
    assert not run.accounts.updates_count(BEN)
    run.away = {BEN}
    for _ in range(3):
        run.to_epoch()
    run.away = ()
    run.to_epoch()
    assert not run.accounts.updates_count(BEN)
    assert BEN not in run.accounts.votes


def test_a_dispute_about_a_departed_member_is_settled(run: Run) -> None:
    """Leaving does not end the dispute, and the audit of a member that leaves still counts."""
    before = run.accounts[BEN].sums.own_audits.sum
    about, of = run.audit(ANN, BEN, LOW), run.audit(BEN, ANN, LOW)
    run.close(about, of)
    run.away = {BEN}
    for _ in range(DRAW_LAG_ROUNDS):
        run.close()
    run.close(
        again=tuple(
            Reaudit(peer, first, first is about)
            for first in (about, of)
            for peer in sorted(run.accounts.pending_reauditors(first))
        )
    )
    assert not run.accounts.disputes
    assert run.accounts[BEN].sums.work.sum > 0
    assert run.accounts[BEN].sums.own_audits.sum > before


def test_where_nobody_is_left_who_has_votes_all_count_alike_until_enough_have(run: Run) -> None:
    voters, strangers = dict(run.accounts.votes), PEERS[8:]
    run.shares = dict.fromkeys(PEERS, SHARE)
    run.away = set(voters)
    run.close()
    assert run.accounts.votes == dict.fromkeys(strangers, 1)
    run.to_epoch()
    # No member has vouched for another yet.
    assert run.accounts.votes == dict.fromkeys(strangers, 1)
    for step in range(1, len(strangers)):
        run.close(
            *(
                run.audit(peer, strangers[(number + step) % len(strangers)])
                for number, peer in enumerate(strangers)
            )
        )
    run.to_epoch()
    earned = dict(run.accounts.votes)
    assert earned.keys() == set(strangers)
    assert min(earned.values()) > SHARE
    # They keep their votes beside the members that come back.
    run.away = ()
    run.close()
    assert run.accounts.votes == voters | earned


def new_swarm(*peers: PeerId) -> Run:
    """Return a swarm that begins, in which these members work."""
    run = Run(dict.fromkeys(peers, SHARE))
    run.away = set(PEERS) - set(peers)
    return run


def test_whoever_is_audited_first_does_not_decide() -> None:
    """A member that does its work and is audited before the others had most votes, or all as soon as the
    founder was away."""
    run = new_swarm(*PEERS[:6])
    run.shares = {**run.shares, ANN: 4 * SHARE}
    run.close()
    run.close()
    run.audits(FOUNDER, ANN)
    run.to_epoch()
    votes = run.accounts.votes
    assert votes.keys() == {FOUNDER, ANN}
    assert votes[FOUNDER] == 2 * votes[ANN] + 1
    # Neither do three of them while the founder is away.
    run.shares = dict.fromkeys(PEERS[:6], SHARE)
    run.to_epoch()
    run.audits(FOUNDER, ANN, BEN, PEERS[3])
    run.to_epoch()
    assert run.accounts.votes.keys() == {FOUNDER, ANN, BEN, PEERS[3]}
    run.away = {FOUNDER, *PEERS[6:]}
    run.close()
    assert run.accounts.votes == dict.fromkeys(PEERS[1:6], EPOCH_ROUNDS * SHARE)
    # Five of six are enough.
    run.away = PEERS[6:]
    run.close()
    run.audits(FOUNDER, PEERS[4])
    run.to_epoch()
    votes = dict(run.accounts.votes)
    assert votes == {peer: run.accounts[peer].work for peer in PEERS[:5]}
    assert votes[ANN] > votes[FOUNDER]
    assert 2 * votes[ANN] < sum(votes[peer] for peer in PEERS[1:5])
    run.away = {FOUNDER, *PEERS[6:]}
    run.close()
    assert run.accounts.votes == {peer: votes[peer] for peer in PEERS[1:5]}


def test_the_founding_lasts_while_one_has_done_most_of_the_others_work() -> None:
    """One that was there long before the others, and lies, would decide alone while the founder is
    away."""
    run = new_swarm(*PEERS[:5])
    run.shares = {**run.shares, ANN: 40 * SHARE}
    run.to_epoch()
    run.audits(FOUNDER, *PEERS[1:5])
    run.to_epoch()
    assert run.accounts.votes.keys() == set(PEERS[:5])
    assert run.accounts.founding
    run.shares = dict.fromkeys(PEERS[:5], SHARE)
    while run.accounts.founding:
        run.audits(FOUNDER, *PEERS[1:5])
        run.to_epoch()
    votes = run.accounts.votes
    assert 2 * votes[ANN] < sum(votes[peer] for peer in PEERS[1:5])


def test_those_that_do_most_of_the_work_decide_while_the_founder_is_away() -> None:
    run = new_swarm(*PEERS[:6])
    run.audits(FOUNDER, *PEERS[1:6])
    run.shares = {**run.shares, PEERS[6]: SHARE}
    run.away = PEERS[7:]
    run.to_epoch()
    votes = run.accounts.votes
    assert votes[FOUNDER] >= 1 + 2 * sum(votes[peer] for peer in PEERS[1:6])
    run.away = {FOUNDER, *PEERS[7:]}
    run.close()
    # By their work in the epoch before, which had fifteen rounds of it.
    assert run.accounts.votes == dict.fromkeys(PEERS[1:6], (EPOCH_ROUNDS - 1) * SHARE)
    # Two of five are enough to vouch for another, and others enough to end the founding.
    run.close(*(run.audit(peer, PEERS[6]) for peer in PEERS[1:3]))
    run.to_epoch()
    assert run.accounts.votes.keys() == set(PEERS[1:7])
    while run.accounts.founding:
        for auditor in PEERS[1:4]:
            run.audits(auditor, *(peer for peer in PEERS[1:7] if peer != auditor))
        run.to_epoch()
    assert run.accounts.votes == {peer: run.accounts[peer].work for peer in PEERS[1:7]}


def test_four_of_nine_that_came_first_do_not_decide_alone() -> None:
    """All that work decide then, by their work, and nobody new gets votes."""
    run = new_swarm(*PEERS[:10])
    run.audits(FOUNDER, *PEERS[1:5])
    run.to_epoch()
    run.away = {FOUNDER, *PEERS[10:]}
    run.close()
    assert run.accounts.votes == dict.fromkeys(PEERS[1:10], (EPOCH_ROUNDS - 1) * SHARE)
    run.close(*(run.audit(peer, PEERS[5]) for peer in PEERS[1:4]))
    run.to_epoch()
    assert PEERS[5] not in run.accounts.earned


def test_after_the_founding_the_founder_is_a_voter_like_others() -> None:
    """A crowd that comes while it is away must not count alike with those who have earned votes."""
    run = new_swarm(*PEERS[:4])
    run.shares = {**run.shares, FOUNDER: 40 * SHARE}
    run.to_epoch()
    run.audits(FOUNDER, *PEERS[1:4])
    assert run.accounts.founding
    run.to_epoch()
    assert not run.accounts.founding
    votes = run.accounts.votes
    assert 3 * votes[FOUNDER] > 2 * sum(votes.values())
    run.shares = dict.fromkeys(PEERS, SHARE)
    run.away = {FOUNDER}
    run.close()
    assert run.accounts.votes == {peer: votes[peer] for peer in PEERS[1:4]}


def test_one_of_four_cannot_keep_the_others_from_having_votes() -> None:
    """While the founder was away, one vouched for nobody, and was vouched for by all: it had all votes
    from the next epoch on, and put all others out of the step."""
    four = PEERS[1:5]
    run = new_swarm(FOUNDER, *four)
    run.away = {FOUNDER, *PEERS[5:]}
    for _ in range(3):
        for auditor in four[1:]:
            run.audits(auditor, *(peer for peer in four if peer != auditor))
    run.to_epoch()
    assert run.accounts.votes.keys() == set(four)


def test_where_all_count_alike_the_first_to_be_vouched_for_wait_for_others() -> None:
    members = PEERS[1:8]
    run = new_swarm(FOUNDER, *members)
    run.away = {FOUNDER, *PEERS[8:]}
    for auditor in members[3:]:
        run.audits(auditor, *members[:2])
    run.to_epoch()
    assert all(run.accounts[peer].work for peer in members[:2])
    assert run.accounts.votes == dict.fromkeys(members, (EPOCH_ROUNDS - 1) * SHARE)
    while run.accounts.founding:
        for peer in members[:5]:
            for auditor in (members[6], members[5], members[0]):
                if auditor != peer:
                    run.audits(auditor, peer)
        run.to_epoch()
    votes = run.accounts.votes
    assert votes.keys() == set(members[:5])
    assert 2 * sum(votes[peer] for peer in members[:2]) < sum(votes.values())


def test_two_that_came_first_do_not_decide_when_the_founding_ends() -> None:
    """Of seven two had half of the votes of others for work that was done before these came."""
    run = new_swarm(*PEERS[:3])
    for _ in range(2):
        run.to_epoch()
        run.audits(FOUNDER, ANN, BEN)
    run.to_epoch()
    run.shares = dict.fromkeys(PEERS[:7], SHARE)
    run.away = PEERS[7:]
    run.close()
    while run.accounts.founding:
        run.audits(FOUNDER, *PEERS[1:7])
        run.to_epoch()
    votes = run.accounts.votes
    assert 2 * (votes[ANN] + votes[BEN]) < sum(votes[peer] for peer in PEERS[1:7])


def test_a_crowd_that_does_little_neither_ends_the_founding_nor_prolongs_it() -> None:
    crowd = PEERS[5:]
    run = new_swarm(*PEERS)
    run.shares = {**dict.fromkeys(PEERS[:5], 16), **dict.fromkeys(crowd, 1)}
    run.close()
    run.audits(FOUNDER, *crowd)
    run.to_epoch()
    assert run.accounts.votes.keys() == {FOUNDER, *crowd}
    assert run.accounts.founding
    # While the founder is away, a vote is worth what its owner does.
    run.away = {FOUNDER}
    run.close()
    votes = run.accounts.votes
    assert sum(votes[peer] for peer in crowd) < sum(votes.values()) // 8
    run.away = ()
    run.audits(FOUNDER, *PEERS[1:5])
    run.shares = dict.fromkeys(PEERS[:5], 16) | dict.fromkeys(crowd[:2], 1)
    run.to_epoch()
    assert not run.accounts.founding


@pytest.mark.parametrize(
    ("votes", "kept"),
    [
        ((1, 1, 1), (1, 1, 1)),
        ((9, 2, 2), (2, 2, 2)),
        ((9, 8, 2, 1), (3, 3, 2, 1)),
        ((9, 1, 1, 2), (2, 1, 1, 2)),
    ],
)
def test_nobody_keeps_more_than_a_third(votes: tuple[int, ...], kept: tuple[int, ...]) -> None:
    found = at_most_a_third(dict(zip(PEERS, votes, strict=False)))
    assert tuple(found.values()) == kept
    assert 3 * max(kept) <= sum(kept)


def test_audits_are_made_in_proportion_to_votes_however_uneven_these_are() -> None:
    """Where the largest made one a round and no more, members with a third of the votes made half of all
    audits."""
    votes = dict(zip(PEERS, (32, 32, 18, 1), strict=False))
    chances = [audit_probability(votes, peer, 1) for peer in votes]
    assert chances == [Fraction(1), Fraction(1), Fraction(18, 32), Fraction(1, 32)]
    assert audit_probability(votes, PEERS[2], 5) == Fraction(18 * 4, 83 * 5)


def test_high_scores_are_their_auditors_own(run: Run) -> None:
    """Liars that held all audits of an epoch back and recorded them at its end had reported most of a
    member's latest scores, so that honest work was low for an epoch."""
    usual = run.accounts.baseline_score(SHARE)
    for peer in PEERS[:4] + PEERS[5:8]:
        for liar in PEERS[4:6]:
            if peer != liar:
                run.audits(liar, peer, score=100 * GOOD)
    run.to_epoch()
    assert run.accounts.baseline_score(SHARE) == usual


def test_who_has_no_votes_does_not_set_the_usual_score(run: Run) -> None:
    """One identity without work is audited as often as all others together: its low scores let five
    members that did half of their work keep all their votes."""
    run.shares = {**run.shares, NEW: SHARE}
    usual = run.accounts.baseline_score(SHARE)
    for _ in range(12):
        for peer in PEERS[:8]:
            run.audits(peer, NEW, score=LOW)
    run.to_epoch()
    assert not run.accounts.founding
    assert run.accounts.baseline_score(SHARE) == usual
    # Those of members with votes do.
    for _ in range(3):
        for number, peer in enumerate(PEERS[:8]):
            rest = [PEERS[(number + step) % 8] for step in range(1, 8)]
            run.audits(peer, *rest, score=GOOD - 3000)
    run.to_epoch()
    assert run.accounts.baseline_score(SHARE) < usual


def test_a_dismissal_ends_the_other_disputes_about_a_member(run: Run) -> None:
    """Each identity of a crowd without work had several, and those about others had to wait."""
    run.shares = {**run.shares, NEW: SHARE}
    run.close()
    first, second, other = (
        run.audit(ANN, NEW, LOW),
        run.audit(BEN, NEW, LOW),
        run.audit(PEERS[3], PEERS[4], LOW),
    )
    run.call(first, second, other)
    reauditors = sorted(run.accounts.pending_reauditors(first))
    run.close(again=tuple(Reaudit(peer, first, low=True) for peer in reauditors))
    assert run.accounts[NEW].dismissed
    assert set(run.accounts.disputes) == {other}
    assert dict(run.accounts.ended) == {first: "failed", second: "dropped"}


def test_a_true_low_score_in_a_share_that_is_not_low_is_held_against_nobody(run: Run) -> None:
    """A member that omits one of two sequences had every honest auditor contradicted."""
    before = run.accounts[ANN].sums.own_audits.sum
    first = run.audit(ANN, BEN, LOW)
    run.call(first)
    others = sorted(run.accounts.pending_reauditors(first))
    run.close(again=tuple(Reaudit(peer, first, low=False, spot=True) for peer in others))
    assert [ending for _, ending in run.accounts.ended] == ["spared"]
    assert run.accounts[ANN].sums.own_audits.sum <= before
    assert run.accounts.updates_count(BEN)
    assert run.accounts[BEN].sums.level.sum > 0


def test_after_the_founding_nobody_vouches_for_itself_alone(run: Run) -> None:
    work = run.accounts[ANN].work
    run.away = set(PEERS) - {ANN}
    for _ in range(3):
        run.to_epoch()
    assert run.accounts[ANN].work == work


def test_who_stopped_working_is_not_waited_for() -> None:
    run = new_swarm(*PEERS[:8])
    run.audits(FOUNDER, *PEERS[1:5])
    run.to_epoch()
    assert run.accounts.founding
    # Members for which nobody has vouched yet, and that do nothing more, but stay.
    run.shares = dict.fromkeys(PEERS[:5], SHARE)
    run.to_epoch()
    run.to_epoch()
    assert not run.accounts.founding


def test_a_founding_does_not_end_while_hardly_anybody_works() -> None:
    """A swarm may begin with its founder alone, and may pause. When two were enough to end the founding,
    the second had half of the votes, and with the founder away all, however many had come by then."""
    run = new_swarm(FOUNDER, ANN)
    run.audits(FOUNDER, ANN)
    run.to_epoch()
    run.shares = {}
    run.to_epoch()
    run.to_epoch()
    assert run.accounts.founding
    assert 3 * run.accounts.votes[FOUNDER] > 2 * sum(run.accounts.votes.values())


def test_who_alone_audits_the_founder_does_not_set_the_usual_score() -> None:
    """A score that passes is never contradicted. With the founder's raised votes one such liar had all
    newcomers' honest scores too low."""
    run = new_swarm(FOUNDER, ANN, *PEERS[4:8])
    run.audits(FOUNDER, ANN)
    run.to_epoch()
    assert run.accounts.votes.keys() == {FOUNDER, ANN}
    for _ in range(MIN_AUDITS):
        run.audits(ANN, FOUNDER, score=100 * GOOD)
        run.audits(FOUNDER, ANN)
    run.to_epoch()
    assert run.accounts.founding
    assert run.accounts.bound(SHARE) <= GOOD


def test_one_who_alone_is_left_cannot_vouch_for_itself(run: Run) -> None:
    run.shares = dict.fromkeys(PEERS, SHARE)
    run.away = set(PEERS) - {NEW}
    for _ in range(3):
        run.to_epoch()
    assert run.accounts.votes == {NEW: 1}
    run.away = ()
    run.close()
    assert NEW not in run.accounts.votes


def test_scores_are_held_to_those_of_shares_as_large() -> None:
    """A fifth of the score is not a fault if a member has sixteen times as much to do."""
    large, small = PEERS[5:8], PEERS[:5]
    run = Run({**dict.fromkeys(small, 1), **dict.fromkeys(large, 16)})
    high, deep = 60_000, 12_000
    run.audits(FOUNDER, *small[1:], score=high)
    run.audits(FOUNDER, *large, score=deep)
    run.to_epoch()
    for auditor in PEERS[:8] * MIN_AUDITS:
        run.audits(auditor, small[auditor == small[0]], score=high)
        run.audits(auditor, large[auditor == large[0]], score=deep)
    run.to_epoch()
    assert (run.accounts.baseline_score(1), run.accounts.baseline_score(16)) == (high, deep)
    assert (run.accounts.bound(1), run.accounts.bound(16)) == (high // 2, deep // 2)
    # No member has a share of four: scores fall with the square root of the share, at the level of most
    # votes, and half of that is usual.
    assert run.accounts.baseline_score(4) == deep
    run.audits(ANN, large[0], score=deep)
    assert not run.accounts.disputes
    run.audits(ANN, small[2], score=deep)
    assert [first.peer for first in run.accounts.disputes] == [small[2]]


def test_a_copy_grows_in_another_way(run: Run) -> None:
    def state(accounts: ReputationTable) -> object:
        of_each = [accounts[peer].copy() for peer in PEERS]
        disputes = {first: dict(known.reaudits) for first, known in accounts.disputes.items()}
        return (
            of_each,
            disputes,
            dict(accounts.votes),
            [accounts.baseline_score(share) for share in (1, 4, 64)],
        )

    first = run.audit(ANN, BEN, LOW)
    run.close(first, run.audit(BEN, FOUNDER))
    ours, before = run.accounts, state(run.accounts)
    theirs, at = ours.copy(), run.round
    assert state(theirs) == before

    def grow() -> None:
        run.close(run.audit(PEERS[3], PEERS[4]), again=(Reaudit(PEERS[5], first, True),))
        run.away = {BEN}
        run.to_epoch()

    grow()
    grown = state(ours)
    assert (state(theirs), grown == before) == (before, False)
    run.accounts, run.round, run.away = theirs, at, ()
    grow()
    assert state(theirs) == grown


def test_the_founder_alone_reaudits_itself() -> None:
    run = Run({FOUNDER: 4, ANN: 4})
    first = run.audit(FOUNDER, ANN, LOW)
    run.call(first)
    run.close(again=(Reaudit(ANN, first, False),))
    assert run.accounts.updates_count(ANN)
    run.close(again=(Reaudit(FOUNDER, first, True),))
    assert not run.accounts.updates_count(ANN)


def test_an_audit_vouches_once_and_by_one_voter(run: Run) -> None:
    """In a large swarm one voter is not enough for votes, however often it audits."""
    run.shares = {**run.shares, NEW: 4}
    run.close()
    for _ in range(5):
        run.audits(ANN, NEW)
    run.to_epoch()
    assert run.accounts[NEW].work > 0
    assert NEW not in run.accounts.votes
    run.audits(BEN, NEW)
    run.audits(FOUNDER, NEW)
    run.to_epoch()
    assert NEW in run.accounts.votes


def test_old_work_gives_no_votes(run: Run) -> None:
    voters = dict.fromkeys(PEERS[:8], 4)
    run.shares = {peer: share for peer, share in voters.items() if peer != BEN}
    while run.round <= WINDOW:
        run.audits(ANN, FOUNDER, *PEERS[3:8])
        run.audits(FOUNDER, ANN, *PEERS[3:8])
        run.audits(PEERS[3], FOUNDER, ANN, *PEERS[4:8])
        run.audits(PEERS[4], PEERS[3])
    run.to_epoch()
    for _ in range(4):
        run.to_epoch()
    assert BEN not in run.accounts.votes
    # Its account is dropped.
    assert run.accounts[BEN].last_round == 0
    assert all(len(run.accounts[peer].vouched) <= WINDOW // EPOCH_ROUNDS + 1 for peer in voters)


def test_where_nobody_has_earned_votes_those_who_had_them_keep_them(run: Run) -> None:
    voters = dict(run.accounts.votes)
    run.shares = {}
    for _ in range(WINDOW // EPOCH_ROUNDS + 2):
        run.to_epoch()
    assert run.accounts.votes
    assert set(run.accounts.votes) <= set(voters)


def test_audits_are_in_proportion_to_votes(run: Run) -> None:
    accounts = run.accounts
    assert accounts.audit_probability(NEW, 5) == 0
    chances = [accounts.audit_probability(peer, 5) for peer in accounts.votes]
    assert sum(chances) == Fraction(len(chances), 5)
    accounts.votes = {FOUNDER: 10, ANN: 1}
    assert accounts.audit_probability(FOUNDER, 1) == 1
