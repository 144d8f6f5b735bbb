"""What looks have come to so far, in numbers: for people, and of no consequence for the rules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Ending = Literal["failed", "contradicted", "dropped"]
"""How a dispute ends: others say that the work is low, that it is not, or nothing in time."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Since the founding."""

    passed: int = 0
    """First looks that were not low."""
    low: int = 0
    """First looks that were."""
    again: int = 0
    """Second looks."""
    failed: int = 0
    contradicted: int = 0
    dropped: int = 0
    """Disputes, by how they ended."""

    @property
    def looks(self) -> int:
        """All first looks."""
        return self.passed + self.low

    def looked(self, *, low: bool) -> Tally:
        """After another first look."""
        if low:
            return replace(self, low=self.low + 1)
        return replace(self, passed=self.passed + 1)

    def looked_again(self) -> Tally:
        """After another second look."""
        return replace(self, again=self.again + 1)

    def ended(self, ending: Ending) -> Tally:
        """After the end of another dispute."""
        match ending:
            case "failed":
                return replace(self, failed=self.failed + 1)
            case "contradicted":
                return replace(self, contradicted=self.contradicted + 1)
            case "dropped":
                return replace(self, dropped=self.dropped + 1)
