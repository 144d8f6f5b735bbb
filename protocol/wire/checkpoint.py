"""A checkpoint: one record by which a chain is known. Invite links carry it, and a node's disk keeps it
(`swarm_id.checkpoint_text`); it is no message."""

from __future__ import annotations

from dataclasses import dataclass

from .messages import RecordId


@dataclass(frozen=True)
class Checkpoint:
    """A record that somebody trusted told us of, or that we knew to be final."""

    round: int
    record: RecordId
