"""How a member stands: what its checks have added up to so far, and how somebody who was accused comes
back.

`sequential` decides once and says no more. A member goes on, so its sums do, too: whoever is accused
stands at the bound, and is cleared when checks that pass have brought the sum down to zero. Nobody is
expelled: a broken fan is no crime, and who came back with a new identity would begin at zero as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from .sequential import Errors, LevelTest, PassTest
from .verdict import Halves

WORK = PassTest(
    accused_wrongly=Fraction(1, 10**6),
    missed=Fraction(1, 100),
    honest_fails=Fraction(1, 1000),
    idle_fails=Fraction(1, 5),
)
"""Of whoever computes: how often checks fail. Three failures within a dozen checks accuse."""

WORD = PassTest(
    accused_wrongly=Fraction(1, 10**6),
    missed=Fraction(1, 100),
    honest_fails=Fraction(1, 20),
    idle_fails=Fraction(1, 2),
)
"""Of whoever looks: how often others contradict its look. A single sequence in which there is little to
learn is a low look at honest work, so this happens to honest members, too (`benchmarks/checks.py`: once
in forty looks at the most)."""

_LEAST_SCATTER = 160
"""Of halves, in thousandths of the usual: that of shares of one sequence, whose scores scatter least."""


def level_test(deviation: int) -> LevelTest:
    """Of whoever computes a part: how high scores are, if honest ones have this standard deviation, in
    thousandths of the usual score. It is measured for each model (`benchmarks/checks.py`).

    Nobody looks again at a score that passes, so liars can say of everybody that it just does: half of
    what is usual. What is lower than seven tenths counts as these. So liars who make a third of all
    looks at somebody take its votes in less than one of a thousand cases in a thousand looks, and not
    within a few hundred (`tests/checks/test_standing.py`)."""
    return LevelTest(
        accused_wrongly=WORK.accused_wrongly,
        missed=WORK.missed,
        usual=950,
        low=780,
        deviation=deviation,
        most=5000,
        least=700,
    )


def halves_test(deviation: int) -> LevelTest:
    """Of whoever computes one half of each sequence: how well the other one is in its updates, beside
    the whole (`verdict.Halves`). `deviation` is that of scores: halves scatter by four fifths of it, and
    hardly less where scores are near each other (`benchmarks/checks.py`). `least` weighs what liars may
    say against how soon one half is found missing (`tests/checks/test_standing.py`)."""
    scatter = max(_LEAST_SCATTER, 4 * deviation // 5)
    return replace(level_test(deviation), low=600, least=650, deviation=scatter)


@dataclass(frozen=True, slots=True)
class Standing:
    """The sum of one test of one member."""

    sum: int = 0
    """In thousandths of a natural logarithm."""
    accused: bool = False

    def after(self, test: Errors, step: int) -> Standing:
        """The standing after one more step of this test."""
        moved = self.sum + step
        if moved >= test.accuse_at:
            return Standing(test.accuse_at, accused=True)
        if self.accused:
            return Standing(moved, accused=True) if moved > 0 else Standing()
        return Standing() if moved <= test.clear_at else Standing(moved)


@dataclass(frozen=True, slots=True)
class Standings:
    """All of a member."""

    work: Standing = Standing()
    """Whether the work is done at all."""
    level: Standing = Standing()
    """Whether all of it is."""
    word: Standing = Standing()
    """Whether its looks are true."""
    first_half: Standing = Standing()
    """Whether sequences are computed from their beginnings."""
    second_half: Standing = Standing()
    """Whether they are computed to their ends."""

    @property
    def counts(self) -> bool:
        """Whether its updates count."""
        return not self.work.accused

    @property
    def passes_until_back(self) -> int:
        """How many checks in a row must pass before its updates count again; 0 if they do."""
        return 0 if self.counts else -(-self.work.sum // -WORK.success)

    @property
    def whole(self) -> bool:
        """Whether both halves of sequences are in its updates, as far as is known."""
        return not (self.first_half.accused or self.second_half.accused)

    @property
    def credible(self) -> bool:
        """Whether it may have votes."""
        accused = self.work.accused or self.level.accused or self.word.accused
        return self.whole and not accused

    def checked(self, *, failed: bool) -> Standings:
        """After a check of its work."""
        step = WORK.failure if failed else WORK.success
        return replace(self, work=self.work.after(WORK, step))

    def turned_away(self) -> Standings:
        """After a failure of somebody of whom nothing else is known: one is enough."""
        return replace(self, work=Standing(WORK.accuse_at, accused=True))

    def scored(self, test: LevelTest, level: int) -> Standings:
        """After a look at its work with this score, in thousandths of the usual one."""
        return replace(self, level=self.level.after(test, test.step(level)))

    def halved(self, test: LevelTest, halves: Halves) -> Standings:
        """After a look at a sequence whose halves are so well in its update."""
        first = self.first_half.after(test, test.step(halves.first))
        second = self.second_half.after(test, test.step(halves.second))
        return replace(self, first_half=first, second_half=second)

    def looked(self, *, contradicted: bool) -> Standings:
        """After a look of its own that others contradict, or do not."""
        step = WORD.failure if contradicted else WORD.success
        return replace(self, word=self.word.after(WORD, step))
