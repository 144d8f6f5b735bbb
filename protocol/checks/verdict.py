"""When a check has failed: below half of what is usual, twice.

How high honest scores are depends on the model, the share and how far a run has come, and nothing but
honest members tells it: so the bound follows from the scores that members have had. A low score alone
is no failure. Another member looks at the whole share, and if but one of its sequences is low, there
was little to learn in that one. All scores are in thousandths of a standard deviation of chance.
"""

from __future__ import annotations

from collections.abc import Sequence

LEAST = 3000
"""No score below this passes: one coin in 741 does better (one side of a normal distribution)."""
_LARGEST = 1 << 40


def usual(scores: Sequence[Sequence[int]], votes: Sequence[int] | None = None) -> int:
    """The usual score, from each member's recent ones: the median of the members' medians.

    Each member has one say, however often it was checked, or as many as it has `votes`; while fewer than
    half of all say is that of liars, what comes out lies between honest members' medians. 0 without any.
    """
    said = [
        (_median(own), weight)
        for own, weight in zip(scores, votes or [1] * len(scores), strict=True)
        if own and weight > 0
    ]
    behind = -(-sum(weight for _, weight in said) // 2)
    for score, weight in sorted(said):
        behind -= weight
        if behind <= 0:
            return score
    return 0


def passing(usual_score: int) -> int:
    """The lowest score that passes where this one is usual."""
    return max(LEAST, usual_score // 2)


def level(score: int, usual_score: int) -> int:
    """A score in thousandths of the usual one, for `LevelTest`; of a usual one of 0 it is 1,000."""
    if usual_score <= 0:
        return 1000
    return max(-_LARGEST, min(_LARGEST, 1000 * score // usual_score))


def failed(first: int, share: Sequence[int], bound: int) -> bool:
    """Whether a check has failed: the first look's score, those of all sequences of the share by another
    member (empty while nobody has looked again), and the lowest that passes.

    As many of the share's must be low as a quarter of it, and two at least if there are two.
    """
    if first >= bound or not share:
        return False
    needed = max(min(2, len(share)), -(-len(share) // 4))
    return sum(score < bound for score in share) >= needed


def _median(values: Sequence[int]) -> int:
    """The lower one of the two in the middle."""
    return sorted(values)[(len(values) - 1) // 2] if values else 0
