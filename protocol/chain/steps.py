"""Steps of a swarm: each begins with an assignment of samples. They are numbered from 1.
Round 0, in which members gather, counts as step 0 and assigns nothing.

Without committees every round is a step. With committees a step takes two rounds: samples are assigned
for the first, and committees aggregate in the second. In the closing rounds, after the last training
round, nothing is trained: without committees each of them is a step, with committees they are one step
together, the last.
"""

from __future__ import annotations

from ..wire.manifest import Manifest


class StepSchedule:
    """Mapping between the rounds and steps of a swarm."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._two = manifest.rounds_per_step == 2
        last = manifest.last_round
        # With committees and an end of the run: the step of all closing rounds.
        self._end = last // 2 + 1 if self._two and last is not None else None

    def step(self, round: int) -> int:
        """Return the step that a round belongs to."""
        if not self._two:
            return round
        step = (round + 1) // 2
        return step if self._end is None else min(step, self._end)

    def round_of(self, step: int) -> int:
        """Return the first round of a step."""
        return 2 * step - 1 if self._two and step else step

    def begins(self, round: int) -> bool:
        """Whether a round is the first of its step."""
        return self.round_of(self.step(round)) == round

    def ends(self, round: int) -> bool:
        """Whether a round is the last of its step."""
        return self.step(round + 1) > self.step(round)

    def trains(self, step: int) -> bool:
        """Whether members train in a step."""
        return self._manifest.schedule.trains(self.round_of(step))
