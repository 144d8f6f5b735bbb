"""What a member brings to a round, and what the round requests next."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from ...crypto.envelope import Envelope
from ...crypto.hashing import ContentId
from ..wire.messages import Message, SnapshotEntry, UpdateEntry
from .effects import Note


@dataclass(frozen=True)
class RoundInput:
    """What the member brings to the round: its parameters and the updates it holds.

    `fingerprint` is that of the parameters, or None while the member has not applied everything decided:
    it then neither proposes nor votes. `snapshot` is the one after the last round, if one was due.
    """

    fingerprint: int | None
    snapshot: SnapshotEntry | None
    held: Set[ContentId]


@dataclass
class RoundRequests:
    """Requests of a round: messages to send (with their kinds), notes to pass on, updates to fetch
    before voting for a proposal, and messages to write to disk before anything is sent."""

    send: list[tuple[str, Message]]
    notes: list[Note]
    fetch: list[UpdateEntry]
    remember: list[Envelope] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.send or self.notes or self.fetch)


NOTHING = RoundRequests([], [], [])
"""No requests."""


def sending(*messages: tuple[str, Message]) -> RoundRequests:
    """Return the request to send these messages, given as (kind, message)."""
    return RoundRequests(list(messages), [], [])
