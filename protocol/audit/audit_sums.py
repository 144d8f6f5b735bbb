"""Reputation of a member: the running sums of its audit tests, and how an accused member recovers.

A test of `sequential_test` ends with its decision. A member works on, so its sums continue: an accused
member's sum starts at the test's upper bound, and the accusation ends when passed audits have brought it
down to zero. No member is expelled, because failing hardware is no offence, and an expelled member could
return under a new identity, whose sums start at zero as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from .sequential_test import LevelTest, PassTest, SequentialTest
from .verdict import Halves

WORK_TEST = PassTest(
    accused_wrongly=Fraction(1, 10**6),
    missed=Fraction(1, 100),
    honest_fails=Fraction(1, 1000),
    idle_fails=Fraction(1, 5),
)
"""Test of a member's work: how often audits of it fail. Three failures within a dozen audits accuse the
member."""

AUDITOR_TEST = PassTest(
    accused_wrongly=Fraction(1, 10**6),
    missed=Fraction(1, 100),
    honest_fails=Fraction(1, 20),
    idle_fails=Fraction(1, 2),
)
"""Test of a member's own audits: how often re-audits contradict them. A sequence with little to learn
gives a low score for honest work, so honest auditors are contradicted, too (in at most one of forty
audits: benchmarks/results/2026-11-26-checks.json)."""

_LEAST_SCATTER = 160
"""Least standard deviation that `halves_test` assumes for the level of a half (`verdict.Halves`), in
thousandths of the usual level: that for shares of one sequence, whose scores scatter least."""


def level_test(deviation: int) -> LevelTest:
    """Return the test that finds members that compute only a part of the work, by how high their scores
    are. It takes *levels*: scores in thousandths of the usual score. Honest members are assumed to have
    a mean level of at least 950 (`usual`).

    `deviation` is the standard deviation of honest scores, in thousandths of the usual score, measured
    for each model.

    A passing score is not re-audited, so byzantine auditors can report a bare pass, half of the usual
    score, for anyone. Scores below seven tenths therefore count as seven tenths. Byzantine members that
    make a third of all audits of a member then take its votes with a probability below one in a thousand
    over a thousand audits, and not within a few hundred (`tests/audit/test_audit_sums.py`).
    """
    return LevelTest(
        accused_wrongly=WORK_TEST.accused_wrongly,
        missed=WORK_TEST.missed,
        usual=950,
        low=780,
        deviation=deviation,
        most=5000,
        least=700,
    )


def halves_test(deviation: int) -> LevelTest:
    """Return the test that finds members that compute one half of each sequence, by how well the other
    half shows in their updates compared with the whole (`verdict.Halves`).

    `deviation` is the standard deviation of scores, as for `level_test`. The levels of halves scatter by
    four fifths of it, but by hardly less than `_LEAST_SCATTER` if scores scatter little
    (benchmarks/results/2026-11-26-checks.json). Levels below `least` count as `least`: a
    high `least` limits what byzantine auditors can claim, a low one finds a missing half sooner
    (`tests/audit/test_audit_sums.py`). It is above `low`, but below the middle of `low` and `usual`, so
    a level of `least` still counts against the member.
    """
    scatter = max(_LEAST_SCATTER, 4 * deviation // 5)
    return replace(level_test(deviation), low=600, least=650, deviation=scatter)


@dataclass(frozen=True, slots=True)
class AuditSum:
    """Running sum of one test of one member."""

    sum: int = 0
    """The sum of the test's log likelihood ratios, in thousandths of a natural logarithm."""
    accused: bool = False

    def after(self, test: SequentialTest, step: int) -> AuditSum:
        """Return the state after one more step of this test."""
        moved = self.sum + step
        if moved >= test.accuse_at:
            return AuditSum(test.accuse_at, accused=True)
        if self.accused:
            return AuditSum(moved, accused=True) if moved > 0 else AuditSum()
        return AuditSum() if moved <= test.clear_at else AuditSum(moved)


@dataclass(frozen=True, slots=True)
class AuditSums:
    """All test sums of one member."""

    work: AuditSum = AuditSum()
    """Tests whether it does the work at all."""
    level: AuditSum = AuditSum()
    """Tests whether it does all of the work."""
    own_audits: AuditSum = AuditSum()
    """Tests whether its audits of others are true."""
    first_half: AuditSum = AuditSum()
    """Tests whether it computes the first halves of sequences."""
    second_half: AuditSum = AuditSum()
    """Tests whether it computes the second halves of sequences."""

    @property
    def updates_count(self) -> bool:
        """Whether the member's updates count in the step."""
        return not self.work.accused

    @property
    def passes_until_counted(self) -> int:
        """Number of consecutive passed audits after which its updates count again; 0 if they do."""
        # The sum divided by what a passed audit takes from it, rounded up.
        return 0 if self.updates_count else -(-self.work.sum // -WORK_TEST.success)

    @property
    def complete(self) -> bool:
        """Whether both halves of sequences are in its updates, as far as is known."""
        return not (self.first_half.accused or self.second_half.accused)

    @property
    def credible(self) -> bool:
        """Whether it may have votes."""
        accused = self.work.accused or self.level.accused or self.own_audits.accused
        return self.complete and not accused

    def audited(self, *, failed: bool) -> AuditSums:
        """Return the sums after an audit of the member's work."""
        step = WORK_TEST.failure if failed else WORK_TEST.success
        return replace(self, work=self.work.after(WORK_TEST, step))

    def dismissed(self) -> AuditSums:
        """Return the sums after a failed audit of a member that never had votes: one failure is enough
        to accuse it."""
        return replace(self, work=AuditSum(WORK_TEST.accuse_at, accused=True))

    def scored(self, test: LevelTest, level: int) -> AuditSums:
        """Return the sums after an audit of the member's work whose score has this level, in thousandths
        of the usual score."""
        return replace(self, level=self.level.after(test, test.step(level)))

    def halved(self, test: LevelTest, halves: Halves) -> AuditSums:
        """Return the sums after an audit of the member's work that found the two halves of the audited
        sequence at these levels."""
        first = self.first_half.after(test, test.step(halves.first))
        second = self.second_half.after(test, test.step(halves.second))
        return replace(self, first_half=first, second_half=second)

    def audited_another(self, *, contradicted: bool) -> AuditSums:
        """Return the sums after an audit that the member made of another one, contradicted by re-audits
        or not."""
        step = AUDITOR_TEST.failure if contradicted else AUDITOR_TEST.success
        return replace(self, own_audits=self.own_audits.after(AUDITOR_TEST, step))
