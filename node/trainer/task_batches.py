"""What goes into a task and comes out of it: samples, batches, losses."""

from __future__ import annotations

from dataclasses import dataclass

import torch

Batch = dict[str, torch.Tensor]
"""Tensors by name; what they mean is the task's own matter."""


@dataclass(frozen=True)
class Sample:
    """A sample as it is stored."""

    data: bytes
    number: int
    """Among the samples that are trained on, or among those held out."""
    round: int
    """0 for what is held out: it is the same in every round."""
    heldout: bool = False


@dataclass(frozen=True)
class Loss:
    """The loss of a batch."""

    total: torch.Tensor
    """A scalar: the sum over all that is counted, with its graph."""
    count: int
    """Over how many tokens (or whatever the task's unit counts) it is the sum."""
