"""Which dispute is looked at next: slow members who choose alike settle some, in the real accounts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.node.trainer.next_look import next_look
from distro_node.protocol.checks.accounts import TERM, Accounts, Facts, FirstLook, SecondLook
from distro_node.protocol.checks.disputes import LASTS
from distro_node.protocol.checks.standing import level_test

GOOD, LOW, SHARE = 15_000, 500, 4
PEERS = [PeerId(content_id(b"member %d" % number)) for number in range(6)]
FOUNDER, CHEAT = PEERS[0], PEERS[5]

Choose = Callable[[Iterable[FirstLook], Accounts, PeerId, int, int], FirstLook | None]


class Swarm:
    """Six members with votes, and what the records of their rounds say."""

    def __init__(self) -> None:
        self.accounts = Accounts(FOUNDER, level_test(250))
        self.round = 0
        self.close()
        for peer in PEERS[1:]:
            self.close([self.look(FOUNDER, peer, GOOD)])
        self.to_term()
        for checker in PEERS:
            for peer in PEERS:
                if peer != checker:
                    self.close([self.look(checker, peer, GOOD)])
        self.to_term()
        assert set(self.accounts.votes) == set(PEERS)

    def to_term(self) -> None:
        self.close()
        while self.round % TERM:
            self.close()

    def look(self, checker: PeerId, peer: PeerId, score: int) -> FirstLook:
        """At the last round."""
        return FirstLook(checker, peer, self.round - 1, SHARE, score)

    def close(self, looks: Iterable[FirstLook] = (), again: Iterable[SecondLook] = ()) -> None:
        shares = dict.fromkeys(PEERS, SHARE) if self.round else {}
        self.accounts.close(Facts(self.round, shares, tuple(looks), tuple(again)), PEERS)
        self.round += 1

    def dispute(self, *checkers: PeerId) -> list[FirstLook]:
        """A round in which these find the cheat's work low."""
        looks = [self.look(checker, CHEAT, LOW) for checker in checkers]
        self.close(looks)
        return looks

    def next(self, waiting: Iterable[FirstLook], me: PeerId, takes: int = 0) -> FirstLook | None:
        return next_look(waiting, self.accounts, me, self.round, takes)


@pytest.fixture
def swarm() -> Swarm:
    return Swarm()


def newest(
    waiting: Iterable[FirstLook], accounts: Accounts, me: PeerId, _now: int, _takes: int
) -> FirstLook | None:
    """What is the newest to oneself: what members must not choose."""
    own = [first for first in waiting if accounts.may_look_again(me, first)]
    return own[-1] if own else None


def rounds_until_left_out(choose: Choose, takes: int, most: int = 160) -> int | None:
    """In how many rounds the cheat is out of the step, where half of the others find its work low in
    each round, and a second look takes each of them so many rounds, more or less."""
    swarm, draw = Swarm(), random.Random(takes)
    honest = PEERS[:5]
    done = dict.fromkeys(honest, 0)
    at: dict[PeerId, FirstLook] = {}
    heard: dict[PeerId, list[FirstLook]] = {peer: [] for peer in honest}
    began = swarm.round
    while swarm.round < began + most:
        if not swarm.accounts.counts(CHEAT):
            return swarm.round - began
        again = []
        for peer in honest:
            if swarm.round < done[peer]:
                continue
            if (first := at.pop(peer, None)) is not None:
                again.append(SecondLook(peer, first, low=True))
            chosen = choose(heard[peer], swarm.accounts, peer, swarm.round, takes)
            if chosen is not None:
                heard[peer].remove(chosen)
                at[peer] = chosen
                done[peer] = swarm.round + draw.randint(max(1, takes - 1), takes + 1)
        looks = [swarm.look(peer, CHEAT, LOW) for peer in honest if draw.random() < 0.5]
        swarm.close(looks, again)
        for peer in honest:
            heard[peer] += looks
    return None


@pytest.mark.parametrize("takes", [1, 2, 4, 7])
def test_slow_members_who_choose_alike_find_a_cheat(takes: int) -> None:
    found = rounds_until_left_out(next_look, takes)
    assert found is not None
    assert found <= 6 * LASTS


def test_those_who_choose_what_is_the_newest_to_them_do_not() -> None:
    assert rounds_until_left_out(newest, 7) is None


def test_all_choose_the_same_in_whatever_order_they_hear_of_it(swarm: Swarm) -> None:
    looks = [first for _ in range(4) for first in swarm.dispute(*PEERS[1:4])]
    chosen = {swarm.next(order, PEERS[4]) for order in (looks, looks[::-1])}
    (first,) = chosen
    assert first is not None
    assert swarm.next(looks, FOUNDER) == first


def test_scores_have_no_say_in_it() -> None:
    # Or a liar would see to it that its looks come first, or those at it last.
    def preferred(scores: tuple[int, int]) -> PeerId:
        swarm = Swarm()
        looks = [
            swarm.look(peer, CHEAT, score) for peer, score in zip(PEERS[1:3], scores, strict=True)
        ]
        swarm.close(looks)
        first = swarm.next(looks, FOUNDER)
        assert first is not None
        return first.checker

    assert len({preferred((LOW + a, LOW + b)) for a in range(4) for b in range(4)}) == 1


def test_what_somebody_has_looked_at_comes_first(swarm: Swarm) -> None:
    looks = swarm.dispute(*PEERS[1:4])
    best = swarm.next(looks, FOUNDER)
    other = next(look for look in looks if look != best)
    swarm.close(again=[SecondLook(PEERS[4], other, low=True)])
    assert swarm.next(looks, FOUNDER) == other


def test_what_would_be_over_before_comes_last(swarm: Swarm) -> None:
    (old,) = swarm.dispute(PEERS[1])
    swarm.close(again=[SecondLook(PEERS[4], old, low=True)])
    for _ in range(LASTS - 5):
        swarm.close()
    (new,) = swarm.dispute(PEERS[2])
    assert swarm.next([new, old], FOUNDER, takes=1) == old
    assert swarm.next([new, old], FOUNDER, takes=3) == new
    # If there is nothing else, it may still go quicker this time.
    assert swarm.next([old], FOUNDER, takes=3) == old


def test_what_cannot_be_settled_any_more_is_not_looked_at(swarm: Swarm) -> None:
    (first,) = swarm.dispute(PEERS[1])
    assert swarm.next([first], FOUNDER) == first
    # Four may look again, so all must agree: one liar is enough, and costs nobody a look.
    swarm.close(again=[SecondLook(PEERS[3], first, low=True)])
    assert swarm.next([first], FOUNDER) == first
    swarm.close(again=[SecondLook(PEERS[2], first, low=False)])
    assert first in swarm.accounts.disputes
    assert swarm.next([first], FOUNDER) is None


def test_only_who_may_look_again_does(swarm: Swarm) -> None:
    (first,) = swarm.dispute(PEERS[1])
    assert swarm.next([first], PEERS[1]) is None
    assert swarm.next([first], CHEAT) is None
    swarm.close(again=[SecondLook(FOUNDER, first, low=True)])
    assert swarm.next([first], FOUNDER) is None
    for _ in range(LASTS):
        swarm.close()
    assert swarm.next([first], PEERS[2]) is None
