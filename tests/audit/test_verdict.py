"""The baseline, the lowest passing score, and the result of a re-audit."""

from __future__ import annotations

import random

import pytest
from distro_node.protocol.audit.verdict import (
    LEAST,
    MIN_AUDITS,
    MIN_HALF_SCORES,
    MIN_SIMILAR_AUDITORS,
    BaselineSample,
    Halves,
    ScoreBaseline,
    baseline_score,
    failed,
    level,
    passing,
)


def test_the_usual_score_lies_between_honest_ones_while_fewer_than_half_lie() -> None:
    chance = random.Random(1)
    for _ in range(200):
        honest = [[chance.randrange(6000, 9000) for _ in range(5)] for _ in range(6)]
        lies = [[chance.choice((-(10**12), 10**12))] * 1000 for _ in range(5)]
        found = baseline_score([*honest, *lies, []])
        assert min(map(min, honest)) <= found <= max(map(max, honest))
    assert baseline_score([]) == baseline_score([[]]) == 0


def test_fewer_than_half_of_all_votes_do_not_move_what_is_usual() -> None:
    chance = random.Random(2)
    for _ in range(100):
        honest = [
            [BaselineSample(chance.randrange(6000, 9000), 16) for _ in range(5)] for _ in range(4)
        ]
        lies = [[BaselineSample(chance.choice((-(10**12), 10**12)), 16)] * 8 for _ in range(9)]
        votes = [chance.randrange(10, 20) for _ in honest]
        # Slightly fewer votes than the honest members have, in more identities.
        split = [(sum(votes) - 1) // len(lies)] * len(lies)
        of = ScoreBaseline([*zip(honest, votes, strict=True), *zip(lies, split, strict=True)]).of
        scores = [audit.score for audits in honest for audit in audits]
        assert min(scores) <= of(16) <= max(scores)
        # No member has a share of four: half of what the square root gives. Integers are not exact.
        assert min(scores) - 10 <= of(4) <= max(scores) + 10


@pytest.mark.parametrize("lie", [10**12, -(10**12), 1])
def test_liars_alone_set_no_score_of_a_rare_size(lie: int) -> None:
    """Of shares that nobody else audits, half of what the square root gives is usual."""
    honest = [([BaselineSample(10_000, 4)] * MIN_AUDITS, 1) for _ in range(10)]
    liars = [([BaselineSample(lie, 64)] * MIN_AUDITS, 1) for _ in range(5)]
    of = ScoreBaseline([*honest, *liars]).of
    assert (of(64), of(4)) == (1250, 10_000)


@pytest.mark.parametrize("lie", [10**12, -(10**12), 1])
def test_nor_do_they_where_half_of_the_others_audit_some(lie: int) -> None:
    seen = [BaselineSample(10_000, 4), BaselineSample(3000, 64)] * MIN_AUDITS
    honest = [(seen, 1) for _ in range(6)] + [([BaselineSample(10_000, 4)] * 8, 1)] * 4
    liars = [([BaselineSample(lie, 64)] * MIN_AUDITS, 1) for _ in range(4)]
    assert ScoreBaseline([*honest, *liars]).of(64) in (1250, 3000)


def test_scores_are_held_to_those_of_shares_of_as_many_digits() -> None:
    small = [([BaselineSample(10_000, 4)] * MIN_AUDITS, 1) for _ in range(2)]
    both = [BaselineSample(10_000, 4)] * MIN_AUDITS + [BaselineSample(3000, 50)] * MIN_AUDITS
    of = ScoreBaseline([*small, *((both, 1) for _ in range(MIN_SIMILAR_AUDITORS))]).of
    assert [of(share) for share in (4, 7, 32, 63)] == [10_000, 10_000, 3000, 3000]
    # All other sizes fall with the square root, and half of that is usual.
    assert [of(1), of(16), of(1024)] == [10_000, 2500, 312]


def test_a_few_audits_set_no_baseline() -> None:
    """As in a new swarm: one high score of a large member would be held against all."""
    told = [([BaselineSample(10_000, 4)] * MIN_AUDITS, 1) for _ in range(5)]
    few = [([BaselineSample(10_000, 4)] * (MIN_AUDITS - 1), 1) for _ in range(5)]
    assert ScoreBaseline([*told, *few]).of(4) == 0
    assert ScoreBaseline([*told, *few[1:]]).of(4) == 10_000
    assert not ScoreBaseline(few).has_similar(4)
    # Neither does a member that was audited with shares of other sizes.
    rare = [
        ([BaselineSample(10_000, 64)] * (MIN_AUDITS - 1) + [BaselineSample(10_000, 4)] * 5, 1)
        for _ in range(9)
    ]
    assert not ScoreBaseline(rare).has_similar(64)
    assert ScoreBaseline(rare).has_similar(4)


@pytest.mark.parametrize("lie", [10**12, -(10**12)])
def test_who_is_audited_first_does_not_set_the_baseline(lie: int) -> None:
    """Liars may audit each other before the others are audited."""
    honest = [([BaselineSample(10_000, 4)] * (MIN_AUDITS - 1), 1) for _ in range(6)]
    liars = [([BaselineSample(lie, 4)] * MIN_AUDITS, 1) for _ in range(5)]
    assert ScoreBaseline([*honest, *liars]).of(4) == 0


def sample(score: int, beginning: int | None, share: int = 4) -> BaselineSample:
    return BaselineSample(score, share, beginning)


def test_a_half_is_as_well_in_an_update_as_is_usual() -> None:
    usually = ScoreBaseline(
        [([sample(10_000, 8000)] * MIN_HALF_SCORES, 1) for _ in range(MIN_SIMILAR_AUDITORS)]
    )
    assert usually.halves(sample(20_000, 16_000)) == Halves(1000, 1000)
    # Only the first or only the second half was computed; the share's size makes no difference.
    assert usually.halves(sample(9000, 10_800, 64)) == Halves(1500, 500)
    assert usually.halves(sample(7000, 2100)) == Halves(500, 1500)
    assert usually.halves(sample(9000, 8640)) == Halves(1200, 800)
    # Whatever the reported score.
    for said in (10**12, 9000 * 4):
        assert usually.halves(sample(9000, said)) == Halves(1500, 500)
    for said in (-(10**12), -1, 0):
        assert usually.halves(sample(9000, said)) == Halves(500, 1500)


def test_of_halves_there_is_no_telling_without_scores() -> None:
    many = [([sample(10_000, 8000)] * MIN_HALF_SCORES, 1) for _ in range(9)]
    assert ScoreBaseline(many).halves(sample(10_000, None)) is None
    assert ScoreBaseline(many).halves(sample(LEAST - 1, 8000)) is None
    assert ScoreBaseline(many[: MIN_SIMILAR_AUDITORS - 1]).halves(sample(10_000, 8000)) is None
    # Audits without a first-half score, or with hardly any score, do not affect the baseline.
    quiet = [([sample(10_000, None), sample(100, 8000)] * MIN_HALF_SCORES, 1) for _ in range(4)]
    quiet += [([sample(10_000, 4000)] * (MIN_HALF_SCORES - 1), 1) for _ in range(4)]
    # But half of all votes are needed.
    assert ScoreBaseline([*many[:8], *quiet]).halves(sample(10_000, 8000)) is None
    assert ScoreBaseline([*many, *quiet]).halves(sample(10_000, 8000)) == Halves(1000, 1000)
    # If first halves usually score nothing, no member is held to them.
    none = [([sample(10_000, -1)] * MIN_HALF_SCORES, 1) for _ in range(9)]
    assert ScoreBaseline(none).halves(sample(10_000, 8000)) is None


def test_fewer_than_half_of_all_votes_do_not_set_the_baseline_of_a_half() -> None:
    chance = random.Random(3)
    for _ in range(100):
        honest = [
            [sample(10_000, chance.randrange(7000, 9000))] * MIN_HALF_SCORES for _ in range(5)
        ]
        lies = [[sample(10_000, chance.choice((-(10**12), 10**12)))] * 8 for _ in range(4)]
        usually = ScoreBaseline([*((own, 1) for own in honest), *((own, 1) for own in lies)])
        found = usually.halves(sample(10_000, 8000))
        assert found is not None
        assert 8000 * 1000 // 9000 <= found.first <= 8000 * 1000 // 7000 + 1


def test_without_audits_there_is_no_baseline() -> None:
    for none in (
        ScoreBaseline(),
        ScoreBaseline([([], 1)]),
        ScoreBaseline([([BaselineSample(9000, 4)] * MIN_AUDITS, 0)]),
    ):
        assert [none.of(share) for share in (1, 4, 1 << 20)] == [0, 0, 0]


def test_half_of_the_usual_passes_but_nothing_that_coins_reach() -> None:
    assert passing(20_000) == 10_000
    assert passing(0) == passing(-(10**9)) == passing(4000) == 3000


def test_a_level_is_a_part_of_the_usual() -> None:
    assert level(5000, 10_000) == 500
    assert level(-5000, 10_000) == -500
    assert level(5000, 0) == 1000
    assert level(10**30, 1) == -level(-(10**30), 1) == 1 << 40


@pytest.mark.parametrize(
    ("first", "share", "verdict"),
    [
        (4000, [0, 0, 0, 0], False),
        (3999, [], False),
        (3999, [0, 9000, 9000, 9000], False),
        (3999, [0, 0, 9000, 9000], True),
        (-(10**30), [0, -1], True),
        (0, [3999], True),
        (0, [4000], False),
        (0, [0, 0, *[9000] * 10], False),
        (0, [0, 0, 0, *[9000] * 9], True),
    ],
)
def test_two_low_sequences_of_a_share_are_a_failure(
    first: int, share: list[int], verdict: bool
) -> None:
    assert failed(first, share, 4000) is verdict
