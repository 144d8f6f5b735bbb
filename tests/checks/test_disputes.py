"""A low look is settled by others, of whom nearly all agree; liars with a third seldom are enough."""

from __future__ import annotations

import itertools
from fractions import Fraction
from math import comb

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.checks.disputes import (
    AGAIN,
    AGREEING,
    CALLED,
    chance_to_be_called,
    outcome,
)

PEERS = [PeerId(content_id(b"%d" % number)) for number in range(12)]


def told(*low: bool) -> dict[PeerId, bool]:
    return dict(zip(PEERS, low, strict=False))


@pytest.mark.parametrize("low", list(itertools.product((False, True), repeat=AGAIN)))
def test_nearly_all_must_agree(low: tuple[bool, ...]) -> None:
    settled = outcome(told(*low), 10)
    if sum(low) >= AGREEING:
        assert settled == "failed"
    elif sum(low) <= AGAIN - AGREEING:
        assert settled == "contradicted"
    else:
        assert settled == "open"


def test_the_first_five_settle_it() -> None:
    assert outcome(told(*[True] * 3), 10) == "open"
    assert outcome(told(*[True] * 3, False, False, True, True), 10) == "open"
    assert outcome(told(*[True] * 4, *[False] * 8), 10) == "failed"


def test_in_a_small_swarm_all_must_agree() -> None:
    assert outcome({}, 0) == "open"
    assert outcome(told(True), 1) == "failed"
    assert outcome(told(False), 1) == "contradicted"
    assert outcome(told(True, False), 2) == "open"
    assert outcome(told(True, True, True), 3) == "failed"


def test_whoever_has_votes_is_called_in_proportion() -> None:
    assert chance_to_be_called(0, 100, AGAIN) == 0
    assert chance_to_be_called(1, 100, AGAIN) == Fraction(CALLED, 100)
    assert chance_to_be_called(100, 100, AGAIN) == 1
    assert chance_to_be_called(0, 0, AGAIN) == 0


@pytest.mark.parametrize("possible", range(1, AGAIN))
def test_where_all_have_to_agree_all_are_called(possible: int) -> None:
    """Whoever has hardly any votes among them would keep each dispute open."""
    assert outcome(told(*[True] * (possible - 1)), possible) == "open"
    assert outcome(told(*[True] * possible), possible) == "failed"
    assert chance_to_be_called(1, 1_000_000, possible) == 1


@pytest.mark.parametrize(("liars", "once_in"), [(Fraction(1, 10), 2000), (Fraction(1, 3), 22)])
def test_how_often_liars_settle_it(liars: Fraction, once_in: int) -> None:
    often = sum(
        comb(AGAIN, number) * liars**number * (1 - liars) ** (AGAIN - number)
        for number in range(AGREEING, AGAIN + 1)
    )
    assert once_in < 1 / often < 1.1 * once_in
