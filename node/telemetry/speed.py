"""How fast this node is, over its last rounds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

# What a status says of "the last rounds" is about so many.
_ROUNDS_AVERAGED = 17


@dataclass(frozen=True)
class Speed:
    """Of the last rounds; None: not known."""

    idle: float | None = None
    """Which part of them the trainer had nothing to do, from 0 to 1."""
    tokens: float | None = None
    """Own ones a second, over all their time."""
    flops: float | None = None
    """Operations a second that the model needed for these."""
    utilisation: float | None = None
    """The same over what the device reaches in a matrix product."""


@dataclass(frozen=True)
class _Reached:
    """What it came to when a round was applied."""

    at: float
    idle: float
    tokens: int
    sequences: int


class RecentRounds:
    """When the last rounds were applied, and what the trainer had done by then."""

    def __init__(self) -> None:
        self.sequence_flops: int | None = None
        """Floating-point operations of a sequence's gradient."""
        self.reached_flops: float | None = None
        """Those a second of a large matrix product on the trainer's device."""
        self._rounds: deque[_Reached] = deque(maxlen=_ROUNDS_AVERAGED)

    def add(self, now: float, idle: float, tokens: int, sequences: int) -> float:
        """A round is applied: seconds that the trainer has had nothing to do, and tokens and sequences
        of own updates, counted or not, all since the start. Returns the idle seconds of this round."""
        before = self._rounds[-1].idle if self._rounds else 0.0
        self._rounds.append(_Reached(now, idle, tokens, sequences))
        return idle - before

    @property
    def round_seconds(self) -> float | None:
        """What a round takes; None before two were seen."""
        if len(self._rounds) < 2:
            return None
        return (self._rounds[-1].at - self._rounds[0].at) / (len(self._rounds) - 1)

    @property
    def speed(self) -> Speed:
        """What the trainer did in them."""
        if len(self._rounds) < 2 or self._rounds[-1].at <= self._rounds[0].at:
            return Speed()
        first, last = self._rounds[0], self._rounds[-1]
        seconds = last.at - first.at
        flops = utilisation = None
        if self.sequence_flops is not None:
            flops = self.sequence_flops * (last.sequences - first.sequences) / seconds
            if self.reached_flops is not None:
                utilisation = flops / self.reached_flops
        return Speed(
            idle=(last.idle - first.idle) / seconds,
            tokens=(last.tokens - first.tokens) / seconds,
            flops=flops,
            utilisation=utilisation,
        )
