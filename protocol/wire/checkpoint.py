"""Checkpoint: one record that identifies a chain. Invite links carry it, and a node's disk keeps it
(`swarm_id.checkpoint_text`); it is not a message."""

from __future__ import annotations

from dataclasses import dataclass

from .messages import RecordId


@dataclass(frozen=True)
class Checkpoint:
    """Record from a trusted source, or known to be final."""

    round: int
    record: RecordId
