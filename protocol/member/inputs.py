"""Inputs: the events reported to a member by its runner.

The runner of the state machine (the daemon, the simulator) passes them to `Member.handle` in the order
in which they happen, and carries out the effects that come back (`effects`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...crypto.envelope import Envelope
from ...crypto.hashing import ContentId
from ...crypto.identity import PeerId
from ..chain.ledger import Ledger
from ..wire.messages import Decided, Message, SnapshotEntry, decode_message


@dataclass(frozen=True)
class FeatureInput:
    """Event for a feature (`member_part`); each feature has its own kinds beside its part."""


@dataclass(frozen=True)
class Tick:
    """Passage of time, reported at least a few times per second."""


@dataclass(frozen=True)
class MessageReceived:
    """Received message, by gossip or in an answer. Its signature was checked."""

    envelope: Envelope

    @cached_property
    def message(self) -> Message:
        """The message inside, decoded once, when it is first needed: a long message of a stranger is
        refused before. Raises `ProtocolError` if it is not a message."""
        return decode_message(self.envelope)


@dataclass(frozen=True)
class EntryReceived:
    """Received ledger entry, from any peer."""

    decided: Decided


@dataclass(frozen=True)
class Recalled:
    """End of a `RecallOwnMessages`: every other member has sent back this member's own messages of
    `round`."""

    round: int


@dataclass(frozen=True)
class Loaded:
    """Parameters after `round` were loaded from a snapshot.

    `snapshot` is the snapshot after `round`, if one is due there."""

    round: int
    fingerprint: int
    snapshot: SnapshotEntry | None


@dataclass(frozen=True)
class Trained:
    """Own update (or aggregate) for `round`, now in the store: the result of `Train` or
    of an order of committees (`aggregation`)."""

    round: int
    assigned_in: int
    """The round that assigns its samples."""
    update: ContentId
    size: int
    tokens: int
    loss: float
    sequences: int = 0
    """Number of sequences computed."""
    computing: float = 0.0
    """Seconds of computing these sequences."""
    encoding: float = 0.0
    """Seconds of encoding, the same for every update."""


@dataclass(frozen=True)
class Applied:
    """The record of `round` was applied to the parameters (`Apply`), which now have this fingerprint."""

    round: int
    fingerprint: int
    snapshot: SnapshotEntry | None
    seconds: float = 0.0
    """Duration of applying it."""


@dataclass(frozen=True)
class UpdateHeld:
    """The bytes of `update` are in the store, and the codec accepts them (`FetchUpdate`)."""

    update: ContentId


@dataclass(frozen=True)
class UpdateBad:
    """The bytes of `update` are not an update of this swarm's layout (`FetchUpdate`)."""

    update: ContentId


@dataclass(frozen=True)
class UpdatesGone:
    """No peer has the updates of `round` any more."""

    round: int


@dataclass(frozen=True)
class Connected:
    """New connection to `peer`."""

    peer: PeerId


@dataclass(frozen=True)
class Disconnected:
    """Loss of the last connection to `peer`."""

    peer: PeerId


@dataclass(frozen=True)
class Rebased:
    """Result of a comparison of chains (`CompareChains`): the member must follow this chain instead."""

    ledger: Ledger


@dataclass(frozen=True)
class LeaveRequested:
    """The node wants to leave. It should run on until its membership ends, or for a limited time."""


Input = (
    Tick
    | MessageReceived
    | EntryReceived
    | Recalled
    | Loaded
    | Trained
    | FeatureInput
    | Applied
    | UpdateHeld
    | UpdateBad
    | UpdatesGone
    | Connected
    | Disconnected
    | Rebased
    | LeaveRequested
)
