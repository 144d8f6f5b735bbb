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

    `fingerprint` is None while the member has not applied everything decided; it then only listens.
    `snapshot` is that of the last round's state, if one was due.
    """

    fingerprint: int | None
    snapshot: SnapshotEntry | None
    held: Set[ContentId]


@dataclass
class RoundRequests:
    """Requests of a round: messages to send, notes to pass on, updates to fetch for a proposal, and
    messages to write to disk before."""

    send: list[tuple[str, Message]]
    notes: list[Note]
    fetch: list[UpdateEntry]
    remember: list[Envelope] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.send or self.notes or self.fetch)


NOTHING = RoundRequests([], [], [])
"""The empty step."""


def sending(*messages: tuple[str, Message]) -> RoundRequests:
    """Return a step that sends these messages."""
    return RoundRequests(list(messages), [], [])
