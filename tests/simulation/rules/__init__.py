"""Rules that random schedules never meet, or whose loss costs time alone: each with the smallest case
that it decides, and what is put in its place to see that the case can fail.

What is looked at is the machine itself (`protocol/`), with peers that answer at once; for the budgets of
the network, the class that keeps them (`node/network`). One module a subject.
"""

from __future__ import annotations

from . import (
    accounts,
    answers,
    asking,
    ballots,
    catching_up,
    comparing,
    fetching,
    finality,
    fork,
    keeping,
    lease,
    looks,
    network,
    noticing,
    pace,
    receipts,
    records,
    replaying,
    rounds,
    shares,
    starting,
    versions,
    votes,
    wire,
    words,
)
from .rule import Rule

SUBJECTS = (
    finality,
    fork,
    lease,
    comparing,
    catching_up,
    asking,
    answers,
    starting,
    versions,
    replaying,
    rounds,
    keeping,
    fetching,
    ballots,
    votes,
    words,
    records,
    receipts,
    noticing,
    pace,
    shares,
    accounts,
    looks,
    wire,
    network,
)

RULES: tuple[Rule, ...] = tuple(rule for subject in SUBJECTS for rule in subject.RULES)


def table() -> list[str]:
    """Break each rule and write down whether its case notices."""
    lines = [f"{'rule':52} {'of':12} broken"]
    for subject in SUBJECTS:
        of = subject.__name__.rpartition(".")[2]
        for rule in subject.RULES:
            assert rule.holds(), rule.name
            found = "NOT FOUND" if rule.holds_without() else "found"
            lines.append(f"{rule.name:52} {of:12} {found}")
    return lines
