"""What a node says of checked work: that of the swarm, and what checks say of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# As in protocol/checks/changes.py.
Why = Literal["turned_away", "failed", "scores", "halves", "word", "unvouched"]


@dataclass(frozen=True, kw_only=True)
class OwnChecks:
    """What checks say of this node."""

    counts: bool
    """Whether its updates are part of the step."""
    votes: int
    """How many of the swarm's votes it has in this round."""
    checks: int
    """How often somebody looked at its work."""
    low: int
    """How many of these looks found less in it than is usual."""
    failed: int
    """How many of the low ones others confirmed, who looked again."""
    looks: int
    """How often it has looked at the work of others, as far as records hold it."""
    why: Why | None
    """Why its updates do not count (`turned_away`, `failed`) or it has no votes, or none soon: its
    scores are too low, only one half of each of its samples is in its updates (`halves`), its word is
    contradicted, or too few vouch for its work; None: it has some."""
    passes_until_back: int
    """So many checks in a row have to pass before its updates count again; 0: they count."""


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A member whose updates are not part of the step."""

    peer: str
    """Its peer id."""
    why: str
    """Why, for people."""


@dataclass(frozen=True, kw_only=True)
class ChecksStatus:
    """What came of checking work, as the chain says."""

    looks: int
    """At members' work, in the records since the founding."""
    low: int
    """How many of these found less than is usual."""
    disputes: int
    """Low looks that others look at again now."""
    votes: int
    """Of all members, in this round."""
    voters: int
    """Members that have any."""
    left_out: tuple[LeftOut, ...]
    """Members whose updates do not count."""
    own: OwnChecks | None
    """None: this node only looks on."""
