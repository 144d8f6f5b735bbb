"""The audits in a node's status: the swarm's audits, and the node's own results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Reasons as in protocol/audit/reputation_events.py.
Why = Literal["dismissed", "failed", "scores", "halves", "contradicted", "unconfirmed"]


@dataclass(frozen=True, kw_only=True)
class OwnAudits:
    """What audits have found about this node."""

    counts: bool
    """Whether its updates are part of the step."""
    votes: int
    """Its votes in this round."""
    audited: int
    """How often its work was audited."""
    low: int
    """Audits of its work with a low score."""
    failed: int
    """Low audits that re-audits confirmed."""
    audits_made: int
    """Audits of others' work by this node that are in records."""
    reason: Why | None
    """Why its updates do not count (`dismissed`, `failed`), or why it has no votes or will soon have
    none: low scores (`scores`), only one half of each of its samples in its updates (`halves`),
    re-audits that contradict its audits (`contradicted`), or too few other members that have audited its
    work (`unconfirmed`); None: it has votes."""
    passes_until_counted: int
    """Audits in a row that have to pass before its updates count again; 0: they count."""


UNAUDITED = OwnAudits(
    counts=True,
    votes=0,
    audited=0,
    low=0,
    failed=0,
    audits_made=0,
    reason=None,
    passes_until_counted=0,
)
"""What audits have found about a node whose work is not audited: no trouble."""


@dataclass(frozen=True, kw_only=True)
class ExcludedMember:
    """A member whose updates are not part of the step."""

    peer: str
    """Its peer id."""
    reason: str
    """The reason, for display."""


@dataclass(frozen=True, kw_only=True)
class AuditsStatus:
    """The results of the audits according to the chain."""

    audits: int
    """Audits of members' work in the records since the founding."""
    low: int
    """Audits with a low score among them."""
    disputes: int
    """Low audits that are being re-audited now."""
    votes: int
    """Votes of all members in this round."""
    voters: int
    """Members with votes."""
    excluded: tuple[ExcludedMember, ...]
    """Members whose updates do not count."""
    own: OwnAudits | None
    """None: this node is an observer."""
