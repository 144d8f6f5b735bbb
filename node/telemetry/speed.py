"""This node's training speed over its last rounds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

# The number of applied rounds that "the last rounds" in a status refers to.
_ROUNDS_AVERAGED = 17


@dataclass(frozen=True)
class TrainingSpeed:
    """Averages over the last rounds; None: unknown."""

    idle: float | None = None
    """Fraction of the time in which the trainer was idle, from 0 to 1."""
    tokens: float | None = None
    """Tokens of own updates per second, over the whole time."""
    flops: float | None = None
    """Floating-point operations per second that the model needed for these tokens."""
    utilisation: float | None = None
    """`flops` as a fraction of the device's speed in a large matrix product, from 0 to 1."""


@dataclass(frozen=True)
class _AppliedRound:
    """The time at which a round was applied, and the trainer's totals then."""

    at: float
    idle: float
    tokens: int
    sequences: int


class RecentRounds:
    """The times of the last rounds, and the trainer's totals at those times."""

    def __init__(self) -> None:
        self.sequence_flops: int | None = None
        """Floating-point operations of one sequence's gradient."""
        self.matmul_flops: float | None = None
        """Operations per second of a large matrix product on the trainer's device."""
        self._rounds: deque[_AppliedRound] = deque(maxlen=_ROUNDS_AVERAGED)
        self._idle = 0.0

    def add(
        self, now: float, idle: float, tokens: int, sequences: int, *, timed: bool = True
    ) -> float:
        """Add an applied round: idle seconds of the trainer, and tokens and sequences of own updates,
        counted or not, all since the start. Return the idle seconds of this round.

        `timed`: whether the round was applied when it was decided. One that was replayed later is left
        out."""
        before, self._idle = self._idle, idle
        if timed:
            self._rounds.append(_AppliedRound(now, idle, tokens, sequences))
        return idle - before

    def clear(self) -> None:
        """Forget the rounds so far: the time since them was not spent in rounds."""
        self._rounds.clear()

    @property
    def round_seconds(self) -> float | None:
        """Mean duration of a round; None before two were applied."""
        if len(self._rounds) < 2:
            return None
        return (self._rounds[-1].at - self._rounds[0].at) / (len(self._rounds) - 1)

    @property
    def speed(self) -> TrainingSpeed:
        """The trainer's averages over these rounds."""
        if len(self._rounds) < 2 or self._rounds[-1].at <= self._rounds[0].at:
            return TrainingSpeed()
        first, last = self._rounds[0], self._rounds[-1]
        seconds = last.at - first.at
        flops = utilisation = None
        if self.sequence_flops is not None:
            flops = self.sequence_flops * (last.sequences - first.sequences) / seconds
            if self.matmul_flops is not None:
                utilisation = flops / self.matmul_flops
        return TrainingSpeed(
            idle=(last.idle - first.idle) / seconds,
            tokens=(last.tokens - first.tokens) / seconds,
            flops=flops,
            utilisation=utilisation,
        )
