"""When a check has failed: below half of what is usual, twice.

How high honest scores are depends on the model, the share and how far a run has come, and nothing but
honest members tells it: so the bound follows from the scores that members have had, those with about as
large a share first of all (`Usual`). A low score alone is no failure. Another member looks at the whole
share, and if but one of its sequences is low, there was little to learn in that one. All scores are in
thousandths of a standard deviation of chance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

LEAST = 3000
"""No score below this passes: one coin in 741 does better (one side of a normal distribution)."""
_LARGEST = 1 << 40
ALIKE = 3
"""So many members with about as large a share tell what is usual for it; so many tell what the
beginning of a sequence usually is of the whole."""
SAID = 4
"""A member tells what is usual once it was looked at so often of late. What is taken for usual is held
against everybody for a term, and where one member has most of the votes, its median alone is. A single
score is far too high too often for that, since whoever has no votes yet has to go after one failure
(`benchmarks/usual.py`)."""
TOLD = 6
"""A member tells what a beginning is of the whole once so many of these looks do: each says less of
that than of how high scores are."""


class Seen(NamedTuple):
    """A first look, as it counts for what is usual."""

    score: int
    share: int
    """The sequences of which one was looked at."""
    beginning: int | None = None
    """The score of the sequence's first half alone; None where it has none."""

    @property
    def part(self) -> int | None:
        """What the beginning's score is of that of the whole, in thousandths; None where there is no
        telling."""
        if self.beginning is None or self.score < LEAST:
            return None
        return 1000 * self.beginning // self.score


class Halves(NamedTuple):
    """Of a sequence, as they are in an update: in thousandths of what is usual, for a `LevelTest`."""

    first: int
    second: int


class Usual:
    """What is usual for a share of each size.

    The more sequences an update is made of, the less each of them shows in it. So a score is held to
    those of members with about as large a share (of as many binary digits), while there are `ALIKE` of
    them. What they have had is believed from half to twice of what all scores say, or three liars with a
    share of a rare size would say what is usual for it. Where a size is too rare, scores are thought to
    fall with the root of the share, and half of that is usual: the least that is believed.
    """

    def __init__(self, seen: Iterable[tuple[Sequence[Seen], int]] = ()) -> None:
        """The recent looks at each member, and its votes.

        Whoever was looked at too seldom says nothing, which counts as a score of 0: so nothing is usual
        before half of all votes have told what is, and no few of them can say it.
        """
        scaled: list[tuple[list[int], int]] = []
        alike: dict[int, list[tuple[list[int], int]]] = {}
        parts: list[tuple[list[int], int]] = []
        for looks, votes in seen:
            own = [look.part for look in looks if look.part is not None]
            if len(own) >= TOLD:
                parts.append((own, votes))
            everywhere = [_times_root(look.score, look.share) for look in looks]
            scaled.append((everywhere if len(looks) >= SAID else [0], votes))
            for size in sorted({look.share.bit_length() for look in looks}):
                own = [look.score for look in looks if look.share.bit_length() == size]
                if len(own) >= SAID:
                    alike.setdefault(size, []).append((own, votes))
        # Of a share of one sequence, as if all scores fell with the root.
        self._one = _usual_of(scaled)
        self._alike = {
            size: _usual_of(scores) for size, scores in alike.items() if len(scores) >= ALIKE
        }
        # What a beginning is of the whole, whatever the share: 0 while too few have told.
        self._part = _usual_of(parts) if len(parts) >= ALIKE else 0

    def knows(self, share: int) -> bool:
        """Whether `ALIKE` members have told what is usual for about so many sequences."""
        return share.bit_length() in self._alike

    def of(self, share: int) -> int:
        """The usual score for a share of so many sequences, at least one; 0 while nobody was looked
        at."""
        anywhere = self._one * 1000 // math.isqrt(1_000_000 * share)
        found = self._alike.get(share.bit_length())
        if found is None:
            return anywhere // 2
        return max(anywhere // 2, min(2 * anywhere, found))

    def halves(self, look: Seen) -> Halves | None:
        """How well both halves of a sequence are in an update; None while that cannot be told.

        Who computes nothing but the first half of each sequence agrees with it better than with the
        whole, and who computes the second one alone hardly agrees with the first. With p for what the
        beginning's score is of that of the whole, the first half is at p / usual p and the second one at
        2 - p / usual p, which is 1 for the honest on average.
        """
        part = look.part
        if part is None or self._part <= 0:
            return None
        first = max(500, min(1500, 1000 * part // self._part))
        return Halves(first, 2000 - first)


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


def _usual_of(scores: Sequence[tuple[Sequence[int], int]]) -> int:
    return usual([own for own, _ in scores], [votes for _, votes in scores])


def _times_root(score: int, share: int) -> int:
    """A score as it would be of a share of one sequence."""
    return score * math.isqrt(1_000_000 * share) // 1000


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
