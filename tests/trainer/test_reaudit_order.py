"""The choice of the next dispute to audit, by a swarm's reputation: all choose alike, so even slow
members settle some."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import repeat
from typing import Any

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.node.training.reaudit_order import next_reaudit
from distro_node.protocol.audit.audit_sums import level_test
from distro_node.protocol.audit.disputes import DRAW_LAG_ROUNDS, OPEN_ROUNDS, REAUDIT_ROUNDS, Jury
from distro_node.protocol.audit.reputation import (
    EPOCH_ROUNDS,
    Audit,
    Reaudit,
    RecordedWork,
    ReputationTable,
)

GOOD, LOW, SHARE = 15_000, 500, 4


class AuditedSwarm:
    """Members with votes, and what their rounds' records say; the last one is a cheat."""

    def __init__(self, members: int, seed: int = 0) -> None:
        self.seed = seed
        self.peers = [PeerId(content_id(b"member %d" % number)) for number in range(members)]
        founder, *others = self.peers
        self.cheat = self.peers[-1]
        self.accounts = ReputationTable(founder, level_test(250))
        self.round = 0
        self.close()
        for peer in others:
            self.close([self.audit(founder, peer, GOOD)])
        step = 0
        while set(self.accounts.votes) != set(self.peers) or self.round % EPOCH_ROUNDS:
            # All members audit each other in turn; audits by members without votes do not count.
            step = step % len(others) + 1
            pairs = zip(self.peers, self.peers[step:] + self.peers[:step], strict=True)
            self.close([self.audit(auditor, peer, GOOD) for auditor, peer in pairs])

    def audit(self, auditor: PeerId, peer: PeerId, score: int) -> Audit:
        """Return an audit of the last round."""
        return Audit(auditor, peer, self.round - 1, SHARE, score)

    def close(self, audits: Iterable[Audit] = (), again: Iterable[Reaudit] = ()) -> None:
        """Close the round with its record."""
        shares = dict.fromkeys(self.peers, SHARE) if self.round else {}
        lot = content_id(b"%d of %d" % (self.round, self.seed))
        facts = RecordedWork(self.round, shares, tuple(audits), tuple(again), lot)
        self.accounts.close(facts, self.peers)
        self.round += 1

    def called(self) -> list[tuple[Audit, PeerId]]:
        """Return the disputes to which members are called since the last record, and those members."""
        return [
            (first, peer)
            for first, dispute in self.accounts.disputes.items()
            if dispute.since + DRAW_LAG_ROUNDS == self.round - 1
            for peer in sorted(self.accounts.pending_reauditors(first))
        ]


@pytest.mark.parametrize("rounds_taken", [1, 7])
def test_slow_members_who_choose_alike_find_a_cheat(rounds_taken: int) -> None:
    """Two others score it low in every round, and a re-audit takes so many rounds, one more or less."""
    swarm, chance = AuditedSwarm(6), random.Random(0)
    honest = swarm.peers[:-1]
    busy: dict[PeerId, tuple[int, Audit]] = {}
    waiting: dict[PeerId, list[Audit]] = {peer: [] for peer in honest}
    began = swarm.round
    while swarm.accounts.updates_count(swarm.cheat):
        assert swarm.round - began < 6 * REAUDIT_ROUNDS
        again = []
        for peer in honest:
            until, first = busy.get(peer, (0, None))
            if swarm.round < until:
                continue
            busy.pop(peer, None)
            if first is not None:
                again.append(Reaudit(peer, first, low=True))
            first = chosen(swarm, waiting[peer], peer, rounds_taken)
            if first is not None:
                waiting[peer].remove(first)
                takes = chance.randint(max(1, rounds_taken - 1), rounds_taken + 1)
                busy[peer] = (swarm.round + takes, first)
        audits = [swarm.audit(auditor, swarm.cheat, LOW) for auditor in chance.sample(honest, 2)]
        swarm.close(audits, again)
        for first, peer in swarm.called():
            waiting[peer].append(first)


@pytest.fixture
def swarm() -> AuditedSwarm:
    """Return six members with votes, the last of them byzantine."""
    return AuditedSwarm(6)


def dispute(swarm: Any, *checkers: PeerId, scores: Iterable[int] = repeat(LOW)) -> list[Audit]:
    """Close a round in which these auditors score the byzantine member's work low, and those until
    others are called."""
    pairs = zip(checkers, scores, strict=False)
    audits = [swarm.audit(auditor, swarm.cheat, score) for auditor, score in pairs]
    swarm.close(audits)
    for _ in range(DRAW_LAG_ROUNDS):
        swarm.close()
    return audits


def chosen(swarm: Any, waiting: Iterable[Audit], me: PeerId, rounds_taken: int = 0) -> Any:
    return next_reaudit(waiting, swarm.accounts, me, swarm.round, rounds_taken)


def test_all_choose_the_same_in_whatever_order_they_learn_of_it(swarm: Any) -> None:
    founder, *checkers, other, _ = swarm.peers
    audits = [first for _ in range(4) for first in dispute(swarm, *checkers)]
    first = chosen(swarm, audits, other)
    assert first is not None
    assert chosen(swarm, audits[::-1], other) == first
    assert chosen(swarm, audits, founder) == first


def test_scores_do_not_change_the_order() -> None:
    # Otherwise a liar would make its own audits come first.
    def preferred(*scores: int) -> PeerId:
        swarm = AuditedSwarm(6)
        founder, *checkers = swarm.peers[:3]
        auditor: PeerId = chosen(swarm, dispute(swarm, *checkers, scores=scores), founder).auditor
        return auditor

    assert len({preferred(500 + a, 500 + b) for a in range(4) for b in (0, 3)}) == 1


def test_what_somebody_has_reaudited_comes_first(swarm: Any) -> None:
    founder, *checkers, other, _ = swarm.peers
    audits = dispute(swarm, *checkers)
    best = chosen(swarm, audits, founder)
    advanced = next(audit for audit in audits if audit != best)
    swarm.close(again=[Reaudit(other, advanced, low=True)])
    assert chosen(swarm, audits, founder) == advanced


def test_what_would_be_over_before_comes_last(swarm: Any) -> None:
    founder, ann, ben, carl, *_ = swarm.peers
    (old,) = dispute(swarm, ann)
    swarm.close(again=[Reaudit(carl, old, low=True)])
    for _ in range(REAUDIT_ROUNDS - DRAW_LAG_ROUNDS - 5):
        swarm.close()
    (new,) = dispute(swarm, ben)
    # The last record that may hold a re-audit comes this many rounds later.
    left = swarm.accounts.disputes[old].since + OPEN_ROUNDS - 1 - swarm.round
    assert left > 0
    assert chosen(swarm, [new, old], founder, rounds_taken=left) == old
    assert chosen(swarm, [new, old], founder, rounds_taken=left + 1) == new
    # If there is nothing else, it may still be faster this time.
    assert chosen(swarm, [old], founder, rounds_taken=left + 1) == old


def test_what_cannot_be_settled_any_more_is_not_reaudited(swarm: Any) -> None:
    founder, ann, ben, carl, _, cheat = swarm.peers
    (first,) = dispute(swarm, ann)
    seats = dict.fromkeys((founder, ann, ben, carl, cheat), 1)
    swarm.accounts.disputes[first].jury = Jury(seats, drawn=True)
    swarm.close(again=[Reaudit(peer, first, low=True) for peer in (ann, carl)])
    assert chosen(swarm, [first], founder) == first
    # It takes four of five, and one is left.
    swarm.close(again=[Reaudit(ben, first, low=False)])
    assert first in swarm.accounts.disputes
    assert chosen(swarm, [first], founder) is None


def test_only_who_may_reaudit_does(swarm: Any) -> None:
    founder, ann, ben, *_ = swarm.peers
    (first,) = dispute(swarm, ann)
    assert chosen(swarm, [first], ann) == first
    assert chosen(swarm, [first], swarm.cheat) is None
    swarm.close(again=[Reaudit(founder, first, low=True)])
    assert chosen(swarm, [first], founder) is None
    for _ in range(OPEN_ROUNDS):
        swarm.close()
    assert chosen(swarm, [first], ben) is None
