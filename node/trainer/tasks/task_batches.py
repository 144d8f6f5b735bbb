"""A task's inputs and outputs: samples, batches, losses."""

from __future__ import annotations

from dataclasses import dataclass

import torch

Batch = dict[str, torch.Tensor]
"""Tensors by name; the task defines their meaning."""


@dataclass(frozen=True)
class StoredSample:
    """A sample as stored."""

    data: bytes
    number: int
    """Its number among the training samples, or among the held-out ones."""
    round: int
    """The round in which it is computed; 0 for a held-out sample, which is the same in every round."""
    heldout: bool = False


@dataclass(frozen=True)
class Loss:
    """The loss of a batch."""

    total: torch.Tensor
    """A scalar: the sum over all targets, with its graph."""
    count: int
    """The number of targets in the sum: tokens, or whatever the task's unit counts."""
