"""What an examination comes to: findings, each with what to do, in the order of how much they hurt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Subject = Literal[
    "python",
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

_ORDER: tuple[Severity, ...] = ("stops", "hurts", "unknown", "good")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    subject: Subject
    """What it is about."""
    severity: Severity
    """`stops`: this computer cannot train; `hurts`: it can, but badly."""
    what: str
    """What was found, for people."""
    remedy: str
    """What helps; empty where nothing has to."""


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """What hurts most comes first; what hurts alike in the order in which it was found."""
    return sorted(findings, key=lambda finding: _ORDER.index(finding.severity))


def fit(findings: Iterable[Finding]) -> bool:
    """Whether nothing stops this computer."""
    return all(finding.severity != "stops" for finding in findings)


def good(subject: Subject, what: str) -> Finding:
    """Nothing is to be done."""
    return Finding(subject=subject, severity="good", what=what, remedy="")
