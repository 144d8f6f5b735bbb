"""The privacy of a node's private data in its status."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PrivacyStatus:
    """What this node's updates reveal about its private data, according to its differential privacy
    accountant."""

    epsilon: float
    """The ε spent so far for any one sequence of its data."""
    delta: float
    """The probability with which that bound may not hold."""
    limit: float
    """The ε that may be spent."""
    noise: float
    """Standard deviation of the noise, divided by `clip`."""
    clip: float
    """Maximum norm of one sequence's gradient."""
    rounds: int
    """Rounds in which some of the ε was spent."""
    spent: bool
    """Whether the budget allows no further round, so that the node leaves."""
