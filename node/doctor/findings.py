"""Findings of an examination, each with a remedy, ordered by severity."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Subject = Literal[
    "python",
    "system",
    "torch",
    "sandbox",
    "device",
    "data directory",
    "disk",
    "memory",
    "clock",
    "ports",
    "open files",
    "energy",
    "bootstrap",
    "reach",
    "swarm",
    "line",
]
Severity = Literal["stops", "hurts", "unknown", "good"]

# Subjects that do not affect training: without them a node only cannot report its use of energy.
_NOT_NEEDED_TO_TRAIN: frozenset[Subject] = frozenset({"energy"})
_SEVERITIES: tuple[Severity, ...] = ("stops", "hurts", "unknown", "good")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one examination."""

    subject: Subject
    """The part examined."""
    severity: Severity
    """`stops`: this computer cannot train; `hurts`: it can, but not well or not safely; `unknown`: the
    examination has no clear result; `good`: no action is needed."""
    what: str
    """What was found, for people."""
    remedy: str
    """What helps; empty if nothing is needed."""


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Sort by severity, the worst first; findings of equal severity stay in order. Findings that do not
    affect training come last."""

    def key(finding: Finding) -> tuple[bool, int]:
        not_needed = finding.severity != "stops" and finding.subject in _NOT_NEEDED_TO_TRAIN
        return not_needed, _SEVERITIES.index(finding.severity)

    return sorted(findings, key=key)


def can_train(findings: Iterable[Finding]) -> bool:
    """Whether no finding stops this computer from training."""
    return all(finding.severity != "stops" for finding in findings)


def good(subject: Subject, what: str) -> Finding:
    """Return a finding that needs no action."""
    return Finding(subject=subject, severity="good", what=what, remedy="")
