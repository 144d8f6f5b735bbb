"""When a number says pause: threshold, hysteresis, and how long an old word holds. Pure.

A tariff or a grid's carbon intensity is a number that is asked for again and again. It pauses a node
beyond one bound and lets it go on beyond another, so that a number that wavers around one of them does
not make a node come and go: each return costs a fetch of what was missed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..settings import PauseWhen

KEEP_SECONDS = 3600.0
"""So long the last word holds while nobody answers: half an hour is a tariff's usual step, and a router
that starts anew takes a minute. Then the node works: whoever lends a computer lends it."""


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """Beyond `pause` the node pauses, back beyond `resume` it goes on; in between all stays as it is."""

    pause: float
    resume: float
    high: bool = True
    """Whether it is a high number that pauses (a price), or a low one (what the roof yields)."""

    def __post_init__(self) -> None:
        numbers = (self.pause, self.resume)
        if not all(map(math.isfinite, numbers)):
            raise ValueError("a threshold is a number")
        if (self.resume > self.pause) if self.high else (self.resume < self.pause):
            raise ValueError("it would resume where it pauses")

    def decide(self, value: float, paused: bool) -> bool:
        """Whether to be paused at this value, having been `paused` before. At a bound itself nothing
        changes, so equal bounds do for a number that does not waver."""
        if not self.high:
            return -value > -self.pause or (paused and not -value < -self.resume)
        return value > self.pause or (paused and not value < self.resume)

    def explain(self, value: float, paused: bool) -> str:
        """What a value means, for people."""
        word, other = ("above", "below") if self.high else ("below", "above")
        if not paused:
            return f"{value:g}; it pauses {word} {self.pause:g}"
        if self.decide(value, False):
            return f"{value:g} is {word} {self.pause:g}"
        return f"{value:g} is not yet {other} {self.resume:g}"


class Gate:
    """What is decided from the words that came so far. Times are seconds of any one clock."""

    def __init__(self, threshold: Threshold, keep_seconds: float = KEEP_SECONDS) -> None:
        self._threshold = threshold
        self._keep = keep_seconds
        self._heard: float | None = None
        self.value: float | None = None
        """The last word, while it holds."""
        self.paused = False

    def hear(self, value: float, now: float) -> bool:
        """A number came; returns whether to be paused."""
        self._heard, self.value = now, value
        self.paused = self._threshold.decide(value, self.paused)
        return self.paused

    def miss(self, now: float) -> bool:
        """None came. The last word holds for a while; returns whether to be paused."""
        if self._heard is not None and now - self._heard > self._keep:
            self._heard = self.value = None
            self.paused = False
        return self.paused

    @property
    def sentence(self) -> str:
        """What was decided, for people."""
        if self.value is None:
            return "nothing is known"
        return self._threshold.explain(self.value, self.paused)


def threshold_of(settings: PauseWhen) -> Threshold | None:
    """The bounds; None where the exit code decides. Raises `ValueError` for those that make no sense."""
    if settings.pause is None:
        return None
    resume = settings.pause if settings.resume is None else settings.resume
    return Threshold(pause=settings.pause, resume=resume, high=settings.high)
