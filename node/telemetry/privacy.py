"""What a node says of the privacy of its own data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PrivacyStatus:
    """What this node's updates tell of its own data, by the account of differential privacy."""

    epsilon: float
    """What is spent so far; of one sequence among its data."""
    delta: float
    """The probability with which that bound may not hold."""
    limit: float
    """What may be spent."""
    noise: float
    """The deviation of the noise, over `clip`."""
    clip: float
    """The longest that the gradient of a sequence may be."""
    rounds: int
    """For how many rounds something was spent."""
    spent: bool
    """There is no room for another round: the node leaves."""
