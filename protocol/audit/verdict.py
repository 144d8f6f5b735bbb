"""When an audit fails: below half of the usual score, confirmed by a re-audit.

The level of honest scores depends on the model, the share and the progress of the run, and only honest
members show it. So the lowest passing score follows from members' recent scores, first of all from those
with a share of similar size (`ScoreBaseline`). A low score alone is not a failure: other members
re-audit the whole share, and if only one of its sequences is low, there was little to learn in that one.
All scores are in thousandths of a standard deviation of chance (`sign_score`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..wire.saved_state import Restorable, fields, of

LEAST = 3000
"""No score below this passes. Random signs reach it once in 741 times (upper tail of a normal
distribution)."""
# Bound of `level`, in either direction.
_LARGEST = 1 << 40
MIN_SIMILAR_AUDITORS = 3
"""Number of auditors that set the baseline for shares of similar size, and number of auditors that set
the usual ratio of a sequence's first half to the whole."""
MIN_AUDITS = 4
"""Number of an auditor's recent audits after which it contributes to the baseline, and of those of
shares of similar size. Everyone is judged by the baseline for an epoch, and if one auditor has most of
the votes, it is that auditor's median alone. A single score is too often far too high to serve as that
median, and a member without votes is dismissed after one failure
(benchmarks/results/2026-11-26-usual.json)."""
MIN_HALF_SCORES = 6
"""Number of audits with a first-half score after which an auditor contributes to the first-half ratio.
It is greater than `MIN_AUDITS`, as an audit tells less about this ratio than about the usual score."""


class BaselineSample(NamedTuple):
    """One audit as a sample for the baseline."""

    score: int
    share: int
    """Number of sequences in the share, of which one was audited."""
    first_half: int | None = None
    """The score of the sequence's first half alone; None if the audit has none."""

    @property
    def half_ratio(self) -> int | None:
        """The first half's score in thousandths of the whole's; None if it cannot be determined."""
        if self.first_half is None or self.score < LEAST:
            return None
        return 1000 * self.first_half // self.score


class Halves(NamedTuple):
    """How well each half of a sequence shows in an update, in thousandths of the usual, for a
    `LevelTest`."""

    first: int
    second: int


class ScoreBaseline(Restorable):
    """Baseline: the usual score for a share of each size.

    The more sequences an update is made of, the less each of them shows in it. So a score is compared
    with the scores of shares with as many binary digits, if auditors with half of all votes, and at
    least `MIN_SIMILAR_AUDITORS`, report enough of them; their baseline is clamped to between half and
    twice of what all scores give. For other sizes, scores are assumed to fall with the square root of
    the share, and half of that is usual: the lower end of the clamp.

    Scores count as their auditor's, not as the audited member's: a passing score is not re-audited, and
    liars with a third of the votes make most of a member's latest audits in some epoch.
    """

    STATE = fields(_one=of(int), _similar=of(dict[int, int]), _half_ratio=of(int))

    def __init__(
        self, samples_by_auditor: Iterable[tuple[Sequence[BaselineSample], int]] = ()
    ) -> None:
        """`samples_by_auditor` holds, per auditor, its recent audits of others and its votes.

        An auditor with too few audits counts with a score of 0: the baseline stays 0 until auditors with
        half of all votes have enough, so that a few of them cannot set it. The same holds for each
        size, and for halves.
        """
        scaled: list[tuple[list[int], int]] = []
        parts: list[tuple[list[int], int]] = []
        by_size: dict[int, list[tuple[list[int], int]]] = {}
        for samples, votes in samples_by_auditor:
            own = [sample.half_ratio for sample in samples if sample.half_ratio is not None]
            if len(own) >= MIN_HALF_SCORES:
                parts.append((own, votes))
            scaled_scores = [_times_root(sample.score, sample.share) for sample in samples]
            scaled.append((scaled_scores if len(samples) >= MIN_AUDITS else [0], votes))
            for size in sorted({sample.share.bit_length() for sample in samples}):
                own = [sample.score for sample in samples if sample.share.bit_length() == size]
                if len(own) >= MIN_AUDITS:
                    by_size.setdefault(size, []).append((own, votes))
        # For a share of one sequence, as if all scores fell with the square root.
        self._one = _weighted_usual(scaled)
        total = sum(votes for _, votes in scaled)

        def usual_of(scores: list[tuple[list[int], int]]) -> int:
            # The others count with 0.
            missing = total - sum(votes for _, votes in scores)
            return _weighted_usual([*scores, ([0], missing)])

        self._similar = {
            size: usual_of(scores)
            for size, scores in by_size.items()
            if len(scores) >= MIN_SIMILAR_AUDITORS
        }
        # Ratio of the first half's score to the whole's, for any share: 0 until enough members show it.
        self._half_ratio = usual_of(parts) if len(parts) >= MIN_SIMILAR_AUDITORS else 0

    def has_similar(self, share: int) -> bool:
        """Whether enough auditors set the baseline for shares of about this size."""
        return self._similar.get(share.bit_length(), 0) > 0

    def of(self, share: int) -> int:
        """Return the usual score for a share of this many sequences, at least one; 0 before any
        audit."""
        scaled = self._one * 1000 // math.isqrt(1_000_000 * share)
        found = self._similar.get(share.bit_length())
        if not found:
            return scaled // 2
        return max(scaled // 2, min(2 * scaled, found))

    def halves(self, sample: BaselineSample) -> Halves | None:
        """Return how well both halves of a sequence show in an update; None while that is undetermined.

        The update of a member that computes only first halves agrees better with the first half than
        with the whole; if it computes only second halves, it hardly agrees with the first. With p the
        ratio of the first half's score to the whole's, the first half is at p / usual p and the second
        one at 2 - p / usual p, which is 1 on average for honest members.
        """
        part = sample.half_ratio
        if part is None or self._half_ratio <= 0:
            return None
        first = max(500, min(1500, 1000 * part // self._half_ratio))
        return Halves(first, 2000 - first)


def baseline_score(scores: Sequence[Sequence[int]], votes: Sequence[int] | None = None) -> int:
    """Return the usual score from each auditor's recent ones: the median of the auditors' medians.

    Each auditor's median is weighted by its `votes`, or equally without them, however often it audits.
    While liars have less than half of the weight, the result is between honest auditors' medians. 0
    without any scores.
    """
    medians = [
        (_median(own), weight)
        for own, weight in zip(scores, votes or [1] * len(scores), strict=True)
        if own and weight > 0
    ]
    remaining = -(-sum(weight for _, weight in medians) // 2)
    for score, weight in sorted(medians):
        remaining -= weight
        if remaining <= 0:
            return score
    return 0


def _weighted_usual(scores: Sequence[tuple[Sequence[int], int]]) -> int:
    return baseline_score([own for own, _ in scores], [votes for _, votes in scores])


def _times_root(score: int, share: int) -> int:
    """Return the score that a share of one sequence would have had."""
    return score * math.isqrt(1_000_000 * share) // 1000


def passing(usual_score: int) -> int:
    """Return the lowest passing score for this usual score."""
    return max(LEAST, usual_score // 2)


def level(score: int, usual_score: int) -> int:
    """Return a score in thousandths of the usual one, for `LevelTest`; 1,000 if there is no usual one
    (0)."""
    if usual_score <= 0:
        return 1000
    return max(-_LARGEST, min(_LARGEST, 1000 * score // usual_score))


def failed(score: int, reaudit_scores: Sequence[int], bound: int) -> bool:
    """Whether an audit has failed. `score`: its score; `reaudit_scores`: a re-auditor's scores of the
    share's sequences, empty before a re-audit; `bound`: the lowest passing score.

    For a failure, the audit's score must be low, and in the re-audit at least a quarter of the share's
    sequences must be low, and at least two if there are two.
    """
    if score >= bound or not reaudit_scores:
        return False
    needed = max(min(2, len(reaudit_scores)), -(-len(reaudit_scores) // 4))
    return sum(each < bound for each in reaudit_scores) >= needed


def _median(values: Sequence[int]) -> int:
    """Return the lower median."""
    return sorted(values)[(len(values) - 1) // 2] if values else 0
