"""Audit counts, for display only: no rule depends on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

DisputeEnding = Literal["failed", "spared", "contradicted", "dropped"]
"""How a dispute ends: re-audits find the work low, one sequence of it, or none, or do not settle it in
time."""


@dataclass(frozen=True, slots=True)
class AuditCounts:
    """Counts since the founding."""

    passed: int = 0
    """Audits that passed."""
    low: int = 0
    """Audits with a low score."""
    reaudits: int = 0
    """Re-audits."""
    failed: int = 0
    """Disputes in which re-audits confirmed the low score."""
    spared: int = 0
    """Disputes in which re-audits found the audited sequence alone low."""
    contradicted: int = 0
    """Disputes in which re-audits contradicted the low score."""
    dropped: int = 0
    """Disputes that were not settled in time."""

    @property
    def audits(self) -> int:
        """All audits, re-audits excluded."""
        return self.passed + self.low

    def after_audit(self, *, low: bool) -> AuditCounts:
        """Return the counts after one more audit."""
        if low:
            return replace(self, low=self.low + 1)
        return replace(self, passed=self.passed + 1)

    def note_reaudit(self) -> AuditCounts:
        """Return the counts after one more re-audit."""
        return replace(self, reaudits=self.reaudits + 1)

    def after_dispute(self, ending: DisputeEnding) -> AuditCounts:
        """Return the counts after one more ended dispute."""
        match ending:
            case "failed":
                return replace(self, failed=self.failed + 1)
            case "spared":
                return replace(self, spared=self.spared + 1)
            case "contradicted":
                return replace(self, contradicted=self.contradicted + 1)
            case "dropped":
                return replace(self, dropped=self.dropped + 1)
