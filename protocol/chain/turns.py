"""Turns: the rounds in which samples are dealt, counted from 1; in turn 0 members gather.

Without speakers every round is a turn. With them a turn is two rounds: samples are dealt for the first,
and in the second panels speak. Behind the last round that trains no turn begins any more.
"""

from __future__ import annotations

from ..wire.manifest import Manifest


class Turns:
    """How the rounds of a swarm make turns."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._two = manifest.speakers is not None
        last = manifest.last_round
        # Where all rounds are turns, those that end a run are as well: nothing is dealt there.
        self._end = last // 2 + 1 if self._two and last is not None else None

    def turn(self, round: int) -> int:
        """The turn that a round belongs to."""
        if not self._two:
            return round
        turn = (round + 1) // 2
        return turn if self._end is None else min(turn, self._end)

    def round_of(self, turn: int) -> int:
        """The first round of a turn."""
        return 2 * turn - 1 if self._two and turn else turn

    def deals(self, round: int) -> bool:
        """Whether a round is the first of its turn."""
        return self.round_of(self.turn(round)) == round

    def ends(self, round: int) -> bool:
        """Whether a turn is over with a round."""
        return self.turn(round + 1) > self.turn(round)

    def trains(self, turn: int) -> bool:
        """Whether anybody trains in a turn."""
        return self._manifest.schedule.trains(self.round_of(turn))
