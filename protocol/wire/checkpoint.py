"""Checkpoint: one record that identifies a chain. It is part of an invite link and kept on a node's disk
(`swarm_id.checkpoint_text`), but is never a message."""

from __future__ import annotations

from dataclasses import dataclass

from .messages import RecordId


@dataclass(frozen=True)
class Checkpoint:
    """Record from a trusted source, or known to be final."""

    round: int
    record: RecordId
