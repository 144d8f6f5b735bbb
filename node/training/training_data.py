"""What a member trains on: what the swarm assigns to it, unless a feature gives it data of its own."""

from __future__ import annotations

from .client import TrainerClient
from .local_policy import DEFAULT_POLICY, LocalPolicy


class TrainingData:
    """The training data of a member. Here it is the samples that the swarm assigns, which other members
    have, too."""

    def __init__(self, policy: LocalPolicy = DEFAULT_POLICY) -> None:
        """`policy`: the trainer's settings for this data."""
        self.policy = policy

    async def choose(
        self, trainer: TrainerClient, samples: tuple[int, ...]
    ) -> tuple[int, ...] | None:
        """Return what to train on if these samples are assigned; None if training has ended."""
        return samples

    def note_loss(self) -> None:
        """Note that some of the data has been lost from the disk. Raises `UserError` if it cannot be
        fetched again."""

    def check(self) -> None:
        """Raise `UserError` if training has ended before the node was told to leave."""
