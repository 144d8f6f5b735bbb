"""Votes follow from work that others vouch for; who lies, of work or of others, loses them."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.checks.accounts import (
    FRESH,
    TERM,
    VOUCHERS,
    WINDOW,
    Accounts,
    Facts,
    FirstLook,
    SecondLook,
)
from distro_node.protocol.checks.disputes import AGREEING, LASTS
from distro_node.protocol.checks.standing import level_test

GOOD, LOW = 15_000, 500
LEVELS = level_test(250)
PEERS = [PeerId(content_id(b"member %d" % number)) for number in range(12)]
FOUNDER, ANN, BEN, NEW = PEERS[0], PEERS[1], PEERS[2], PEERS[11]


class Run:
    """A swarm's rounds, one after the other."""

    def __init__(self, shares: Mapping[PeerId, int]) -> None:
        self.accounts = Accounts(FOUNDER, LEVELS)
        self.shares = shares
        self.round = 0

    def close(self, *looks: FirstLook, again: tuple[SecondLook, ...] = ()) -> None:
        self.accounts.close(Facts(self.round, self.shares, looks, again))
        self.round += 1

    def looks(self, checker: PeerId, *peers: PeerId, score: int = GOOD) -> None:
        """A round of each look."""
        for peer in peers:
            self.close(FirstLook(checker, peer, self.round, score))

    def to_term(self) -> None:
        """To the beginning of the next one."""
        self.close()
        while self.round % TERM:
            self.close()

    def settle(self, first: FirstLook, low: bool) -> None:
        """The first look, and then everybody's."""
        self.close(first)
        lookers = [peer for peer in self.accounts.votes if peer not in (first.checker, first.peer)]
        self.close(again=tuple(SecondLook(peer, first, low) for peer in lookers))


@pytest.fixture
def run() -> Run:
    """Eight members with votes, in the second term after they had none."""
    run = Run(dict.fromkeys(PEERS[:8], 4))
    run.looks(FOUNDER, *PEERS[1:8])
    run.to_term()
    assert set(run.accounts.votes) == set(PEERS[:8])
    for number, peer in enumerate(PEERS[:8]):
        run.looks(peer, *(PEERS[(number + step) % 8] for step in range(1, VOUCHERS + 1)))
    run.to_term()
    return run


def test_the_founder_is_alone_until_it_has_vouched_for_somebody() -> None:
    run = Run({FOUNDER: 4, ANN: 2, BEN: 1})
    run.to_term()
    run.to_term()
    assert dict(run.accounts.votes) == {FOUNDER: 4 * 2 * TERM}
    run.looks(FOUNDER, ANN)
    # Not before the next term, and for all that she did until the round that was looked at.
    assert set(run.accounts.votes) == {FOUNDER}
    run.to_term()
    assert run.accounts.votes == {FOUNDER: 4 * 3 * TERM, ANN: 2 * (2 * TERM + 1)}


def test_votes_are_the_work_that_is_vouched_for(run: Run) -> None:
    before = dict(run.accounts.votes)
    run.looks(ANN, BEN)
    run.to_term()
    after = run.accounts.votes
    assert after[BEN] > before[BEN]
    assert {peer for peer in after if after[peer] != before[peer]} == {BEN}


def test_as_one_member_or_as_many_the_votes_are_the_same() -> None:
    def hostile_votes(identities: int) -> Fraction:
        crowd = [PeerId(content_id(b"crowd %d" % number)) for number in range(identities)]
        run = Run({FOUNDER: 90, **dict.fromkeys(crowd, 24 // identities)})
        for _ in range(2):
            at = run.round
            # Whatever looks there are, in one round.
            run.close()
            for peer in crowd:
                run.close(FirstLook(FOUNDER, peer, run.round, GOOD))
            while run.round < at + 4 * TERM:
                run.close()
        run.looks(FOUNDER, *crowd)
        votes = run.accounts.votes
        run.to_term()
        votes = run.accounts.votes
        return Fraction(sum(votes.get(peer, 0) for peer in crowd), sum(votes.values()))

    # But for the rounds in which each is looked at last.
    assert hostile_votes(12) <= hostile_votes(1) * Fraction(11, 10)


@pytest.mark.parametrize("why", ["of itself", "no votes", "nobody", "old", "to come", "twice"])
def test_looks_that_may_not_be_change_nothing(run: Run, why: str) -> None:
    now = run.round
    look = {
        "of itself": FirstLook(ANN, ANN, now, GOOD),
        "no votes": FirstLook(NEW, ANN, now, GOOD),
        "nobody": FirstLook(ANN, NEW, now, GOOD),
        "old": FirstLook(ANN, BEN, now - FRESH, GOOD),
        "to come": FirstLook(ANN, BEN, now + 1, GOOD),
        "twice": FirstLook(ANN, BEN, now, GOOD),
    }[why]
    if why == "twice":
        run.close(FirstLook(ANN, FOUNDER, now, GOOD))
    peer = look.peer
    before = (
        run.accounts[peer].work,
        run.accounts[peer].standings,
        list(run.accounts[peer].scores),
    )
    run.close(look)
    account = run.accounts[peer]
    assert (account.work, account.standings, list(account.scores)) == before


def test_a_failure_takes_what_waits_and_three_take_the_votes(run: Run) -> None:
    votes = dict(run.accounts.votes)
    for _ in range(2):
        run.settle(FirstLook(ANN, BEN, run.round, LOW), low=True)
        assert run.accounts.counts(BEN)
    assert run.accounts[BEN].work == votes[BEN]
    assert not run.accounts[BEN].waiting
    run.settle(FirstLook(FOUNDER, BEN, run.round, LOW), low=True)
    assert not run.accounts.counts(BEN)
    run.to_term()
    assert BEN not in run.accounts.votes
    # What it does then is vouched for by nobody.
    run.looks(ANN, BEN)
    assert run.accounts[BEN].work == 0


def test_of_a_stranger_one_failure_is_enough(run: Run) -> None:
    run.shares = {**run.shares, NEW: 4}
    run.close()
    assert run.accounts.counts(NEW)
    run.settle(FirstLook(ANN, NEW, run.round, LOW), low=True)
    assert not run.accounts.counts(NEW)
    # Whoever goes and comes back begins anew.
    run.accounts.leave(NEW)
    assert run.accounts.counts(NEW)
    assert run.accounts[NEW].work == 0


def test_whoever_accuses_the_honest_is_not_heard_any_more(run: Run) -> None:
    accused = [peer for peer in PEERS[:8] if peer != ANN] * 3
    for peer in accused:
        run.settle(FirstLook(ANN, peer, run.round, LOW), low=False)
    assert all(run.accounts[peer].standings.credible for peer in accused)
    assert not run.accounts[ANN].standings.credible
    assert run.accounts.counts(ANN)
    run.to_term()
    assert ANN not in run.accounts.votes
    # It can look at nobody, so time alone gives it its word back.
    for _ in range(30):
        run.to_term()
    assert run.accounts[ANN].standings.credible
    assert ANN in run.accounts.votes


def test_one_liar_settles_nothing(run: Run) -> None:
    first = FirstLook(ANN, BEN, run.round, LOW)
    run.close(first)
    others = [peer for peer in run.accounts.votes if peer not in (ANN, BEN)]
    again = tuple(SecondLook(peer, first, True) for peer in others[: AGREEING - 1])
    # Said twice is said once, and the first one is heard once in all.
    run.close(again=(*again, *again, SecondLook(ANN, first, True), SecondLook(BEN, first, False)))
    assert list(run.accounts.disputed) == [first]
    for _ in range(LASTS):
        run.close()
    assert not list(run.accounts.disputed)
    assert run.accounts[BEN].standings.work.sum <= 0


def test_whoever_leaves_takes_disputes_along(run: Run) -> None:
    """Neither a dispute about a member that has left, nor its own looks, can be settled any more."""
    about, of = FirstLook(ANN, BEN, run.round, LOW), FirstLook(BEN, ANN, run.round, LOW)
    run.close(about, of)
    run.accounts.leave(BEN)
    assert list(run.accounts.disputed) == [of]
    assert BEN not in run.accounts.votes
    others = [peer for peer in run.accounts.votes if peer != ANN]
    run.shares = {peer: share for peer, share in run.shares.items() if peer != BEN}
    run.close(
        again=tuple(SecondLook(peer, first, False) for first in (about, of) for peer in others)
    )
    assert not list(run.accounts.disputed)
    assert run.accounts[BEN].standings.word.sum == 0


def test_the_founder_alone_looks_again_itself() -> None:
    run = Run({FOUNDER: 4, ANN: 4})
    first = FirstLook(FOUNDER, ANN, 0, LOW)
    run.close(first)
    run.close(again=(SecondLook(ANN, first, False),))
    assert run.accounts.counts(ANN)
    run.close(again=(SecondLook(FOUNDER, first, True),))
    assert not run.accounts.counts(ANN)


def test_a_look_vouches_once_and_by_one_voter(run: Run) -> None:
    """In a swarm of many one voter is not enough for votes, however often it looks."""
    run.shares = {**run.shares, NEW: 4}
    run.close()
    for _ in range(5):
        run.looks(ANN, NEW)
    run.to_term()
    assert run.accounts[NEW].work > 0
    assert NEW not in run.accounts.votes
    run.looks(BEN, NEW)
    run.looks(FOUNDER, NEW)
    run.to_term()
    assert NEW in run.accounts.votes


def test_old_work_gives_no_votes(run: Run) -> None:
    voters = dict.fromkeys(PEERS[:8], 4)
    run.shares = {peer: share for peer, share in voters.items() if peer != BEN}
    while run.round <= WINDOW:
        run.looks(ANN, FOUNDER, *PEERS[3:8])
        run.looks(FOUNDER, ANN, *PEERS[3:8])
        run.looks(PEERS[3], FOUNDER, ANN, *PEERS[4:8])
        run.looks(PEERS[4], PEERS[3])
    run.to_term()
    for _ in range(4):
        run.to_term()
    assert BEN not in run.accounts.votes
    # Nothing is left of it.
    assert run.accounts[BEN].last == 0
    assert all(len(run.accounts[peer].vouched) <= WINDOW // TERM + 1 for peer in voters)


def test_where_nobody_has_earned_votes_those_who_had_them_keep_them(run: Run) -> None:
    voters = dict(run.accounts.votes)
    run.shares = {}
    for _ in range(WINDOW // TERM + 2):
        run.to_term()
    assert run.accounts.votes
    assert set(run.accounts.votes) <= set(voters)


def test_looks_are_in_proportion_to_votes(run: Run) -> None:
    accounts = run.accounts
    assert accounts.chance_to_look(NEW, 5) == 0
    chances = [accounts.chance_to_look(peer, 5) for peer in accounts.votes]
    assert sum(chances) == Fraction(len(chances), 5)
    accounts.votes = {FOUNDER: 10, ANN: 1}
    assert accounts.chance_to_look(FOUNDER, 1) == 1


def test_newcomers_are_a_third_at_the_most(run: Run) -> None:
    assert run.accounts.newcomers() == 4
    assert Accounts(FOUNDER, LEVELS).newcomers() == 2
