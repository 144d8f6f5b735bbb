"""A low audit is settled by all members called, weighted by votes; a third of these is too little."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction
from math import comb

import pytest
from distro_node.crypto.hashing import content_id
from distro_node.crypto.identity import PeerId
from distro_node.protocol.audit.disputes import (
    JURY_SEATS,
    Finding,
    Jury,
    Outcome,
    draw_jury,
    outcome,
)

PEERS = [PeerId(content_id(b"%d" % number)) for number in range(60)]
AUDITED = PEERS[0]


def lots(count: int) -> list[bytes]:
    return [random.Random(number).randbytes(32) for number in range(count)]


def called(*votes: int) -> Jury:
    return draw_jury(dict(zip(PEERS, votes, strict=False)), b"lot")


def told(*low: bool) -> dict[PeerId, Finding]:
    """Return re-audits by members other than the checked one, which is the first."""
    return dict(zip(PEERS[1:], (found(each) for each in low), strict=False))


def found(low: bool) -> Finding:
    return "low" if low else "fine"


def test_a_majority_of_votes_decides() -> None:
    all_ = called(3, 1, 1, 4)
    assert not all_.drawn
    assert outcome(all_, {}, AUDITED) == "open"
    # Five of nine votes are needed.
    assert outcome(all_, told(True, True), AUDITED) == "open"
    assert outcome(all_, told(True, False, True), AUDITED) == "failed"
    assert outcome(all_, told(False), AUDITED) == "open"
    assert outcome(all_, told(False, False), AUDITED) == "contradicted"


def test_the_order_is_of_no_account() -> None:
    low = {1: True, 2: False, 3: True, 4: True, 5: False}
    for order in itertools.permutations(low):
        said: dict[PeerId, Finding] = {PEERS[n]: found(low[n]) for n in order}
        assert outcome(called(1, 1, 1, 2, 2, 1), said, AUDITED) == "failed", order


def test_the_audited_member_decides_nothing_alone_whatever_its_votes() -> None:
    most = called(8, 1, 1)
    assert outcome(most, {}, AUDITED) == "open"
    assert outcome(most, told(True, True), AUDITED) == "open"
    assert outcome(most, told(False), AUDITED) == "contradicted"


def test_who_has_no_votes_or_is_not_called_counts_for_nothing() -> None:
    stranger: dict[PeerId, Finding] = {PEERS[40]: "low", PEERS[41]: "low"}
    assert outcome(called(1, 1, 1), {**told(True), **stranger}, AUDITED) == "open"


def test_a_low_spot_in_a_share_that_is_not_low_blames_nobody() -> None:
    """Nor does the order of the answers matter."""
    all_ = called(1, 1, 1, 1, 1, 1)

    def after(*answers: Finding) -> Outcome:
        said: dict[PeerId, Finding] = {PEERS[n]: each for n, each in enumerate(answers, 1)}
        return outcome(all_, said, AUDITED)

    answers: tuple[Finding, ...] = ("spot", "spot", "spot", "fine", "low")
    for order in itertools.permutations(answers):
        assert after(*order) == "spared", order
    assert after("spot", "spot") == "open"
    # Three of five find the sequence itself not low, and with the audited member they are four of six.
    assert after("spot", "fine", "fine", "fine") == "contradicted"


@pytest.mark.parametrize("count", range(3, JURY_SEATS + 1))
def test_up_to_sixteen_a_third_settles_nothing_and_two_thirds_all(count: int) -> None:
    """The auditor is a liar and the audited member honest, or the other way round."""
    liars = (count - 1) // 3
    all_ = called(*[1] * count)
    honest_audited = told(*[False] * (count - liars - 1), *[True] * liars)
    assert outcome(all_, honest_audited, AUDITED) == "contradicted"
    only_liars = dict(itertools.islice(reversed(honest_audited.items()), liars))
    assert outcome(all_, only_liars, AUDITED) == "open"
    if liars:
        idle_audited = told(*[True] * (count - liars), *[False] * (liars - 1))
        assert outcome(all_, idle_audited, AUDITED) == "failed"


def test_where_many_have_votes_seats_are_drawn_in_proportion() -> None:
    votes = dict(zip(PEERS[:30], [1] * 29 + [31], strict=True))
    seats = [draw_jury(votes, lot) for lot in lots(600)]
    assert all(each.drawn and sum(each.weights.values()) == JURY_SEATS for each in seats)
    assert all(each.needed == 11 for each in seats)
    # Half of the votes give half of the seats, to within one.
    assert {each.weights[PEERS[29]] for each in seats} <= {8, 9}
    often = sum(each.weights.get(PEERS[3], 0) for each in seats) / 600
    # 16 of 60, with a standard deviation of 0.018.
    assert abs(often - 16 / 60) < 0.08
    assert len({tuple(sorted(each.weights)) for each in seats}) == 600


def test_how_often_liars_with_a_third_have_two_thirds_of_the_seats() -> None:
    many = sum(
        comb(JURY_SEATS, n) * Fraction(1, 3) ** n * Fraction(2, 3) ** (JURY_SEATS - n)
        for n in range(11, JURY_SEATS + 1)
    )
    assert 240 < 1 / many < 260
    forty = Fraction(
        sum(comb(13, n) * comb(27, JURY_SEATS - n) for n in range(11, 14)), comb(40, 16)
    )
    assert 9600 < 1 / forty < 9650
    votes = dict.fromkeys(PEERS[:40], 1)
    liars = set(PEERS[:13])
    won = sum(
        sum(seat for peer, seat in draw_jury(votes, lot).weights.items() if peer in liars) >= 11
        for lot in lots(3000)
    )
    assert won <= 3
