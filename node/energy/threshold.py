"""Pause decision from a number: thresholds, hysteresis, and the expiry of an old value.

A tariff's price or a grid's carbon intensity is a number that is polled. It pauses a node beyond one
bound and lets it resume beyond another, so that a number that fluctuates around one of the bounds does
not pause and resume the node again and again: a node that resumes has to fetch what it missed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

KEEP_SECONDS = 3600.0
"""How long the last value is valid while there is no answer: two steps of a tariff, which are usually
half an hour each, and much longer than a router takes to restart. After that the node works, because its
owner has lent the computer."""


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """Bounds beyond which the node pauses and resumes; between them it keeps its state."""

    pause: float
    resume: float
    high: bool = True
    """Whether high numbers pause the node (a price), or low ones (a solar roof's output)."""

    def __post_init__(self) -> None:
        numbers = (self.pause, self.resume)
        if not all(map(math.isfinite, numbers)):
            raise ValueError("a threshold must be a finite number")
        if (self.resume > self.pause) if self.high else (self.resume < self.pause):
            raise ValueError("it would resume at a value at which it pauses")

    def decide(self, value: float, paused: bool) -> bool:
        """Return whether the node is to be paused at this value; `paused`: whether it was before.

        A value equal to a bound changes nothing, so two equal bounds are valid.
        """
        # If low numbers pause the node, the comparison is that of the negated numbers.
        if not self.high:
            return -value > -self.pause or (paused and not -value < -self.resume)
        return value > self.pause or (paused and not value < self.resume)

    def explain(self, value: float, paused: bool) -> str:
        """Return the meaning of a value, for people."""
        pause_side, resume_side = ("above", "below") if self.high else ("below", "above")
        if not paused:
            return f"{value:g}; it pauses {pause_side} {self.pause:g}"
        if self.decide(value, False):
            return f"{value:g} is {pause_side} {self.pause:g}"
        return f"{value:g} is not yet {resume_side} {self.resume:g}"


class PauseDecision:
    """Decision from the values so far. Times are seconds of any one clock."""

    def __init__(self, threshold: Threshold, keep_seconds: float = KEEP_SECONDS) -> None:
        self._threshold = threshold
        self._keep = keep_seconds
        self._value_time: float | None = None
        self.value: float | None = None
        """The last value, while it is valid."""
        self.paused = False

    def take_value(self, value: float, now: float) -> bool:
        """Take a new value; return whether the node is to be paused."""
        self._value_time, self.value = now, value
        self.paused = self._threshold.decide(value, self.paused)
        return self.paused

    def take_no_value(self, now: float) -> bool:
        """Note a missing answer; the last value stays valid for `keep_seconds`. Return whether the node
        is to be paused."""
        if self._value_time is not None and now - self._value_time > self._keep:
            self._value_time = self.value = None
            self.paused = False
        return self.paused

    @property
    def sentence(self) -> str:
        """The decision, for people."""
        if self.value is None:
            return "no value is known"
        return self._threshold.explain(self.value, self.paused)
