"""Inputs: the events reported to a member by its runner.

The runner of the state machine (the daemon, the simulator) passes them to `Member.handle` in the order
in which they happen, and carries out the effects that come back (`effects`).
"""

from __future__ import annotations

from dataclasses import dataclass

from ...crypto.envelope import Envelope
from ...crypto.hashing import ContentId
from ...crypto.identity import PeerId
from ..audit.reputation import Audit
from ..chain.ledger import Ledger
from ..wire.messages import AuditScore, Decided, SnapshotEntry


@dataclass(frozen=True)
class Tick:
    """Passage of time, reported at least a few times per second."""


@dataclass(frozen=True)
class MessageReceived:
    """Received message, by gossip or in an answer. Its signature was checked."""

    envelope: Envelope


@dataclass(frozen=True)
class EntryReceived:
    """Received ledger entry, from any peer."""

    decided: Decided


@dataclass(frozen=True)
class Recalled:
    """End of a `RecallOwnMessages`: every other member has sent its messages of `round`."""

    round: int


@dataclass(frozen=True)
class Loaded:
    """Parameters after `round`, loaded from a snapshot.

    `snapshot` is the one of `round`, if one was due there."""

    round: int
    fingerprint: int
    snapshot: SnapshotEntry | None


@dataclass(frozen=True)
class Trained:
    """Own update for `round`, now in the store (`Train`)."""

    round: int
    dealt: int
    """The round that assigns its samples."""
    update: ContentId
    size: int
    tokens: int
    loss: float
    sequences: int = 0
    """Number of sequences computed."""
    computing: float = 0.0
    """Seconds of computing, proportional to the sequences."""
    encoding: float = 0.0
    """Seconds that any update takes."""


@dataclass(frozen=True)
class AuditScored:
    """Result of an audit (`ScoreAudit`), in integers (`audit/sign_score`); `squares` is 0 if there was
    nothing to compare. `beginning`: the score of the sequence's first half alone, if it has one."""

    round: int
    total: int
    squares: int
    beginning: AuditScore | None = None


@dataclass(frozen=True)
class ReauditDone:
    """Result of a re-audit (`RunReaudit`): the score of each sample, in order."""

    first: Audit
    scores: tuple[AuditScore, ...]


@dataclass(frozen=True)
class Applied:
    """Record of `round`, now applied to the parameters (`Apply`)."""

    round: int
    fingerprint: int
    snapshot: SnapshotEntry | None
    seconds: float = 0.0
    """Duration of applying it."""


@dataclass(frozen=True)
class UpdateHeld:
    """Bytes of `update`, now in the store and accepted by the codec (`FetchUpdate`)."""

    update: ContentId


@dataclass(frozen=True)
class UpdateBad:
    """Bytes of `update`, which are not an update of this swarm's layout."""

    update: ContentId


@dataclass(frozen=True)
class UpdatesGone:
    """Updates of `round` that no peer has any more."""

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
    """Result of a comparison of chains: follow this one instead (`CompareChains`)."""

    ledger: Ledger


@dataclass(frozen=True)
class LeaveRequested:
    """Request to leave. The node should stay until its membership or its patience ends."""


Input = (
    Tick
    | MessageReceived
    | EntryReceived
    | Recalled
    | Loaded
    | Trained
    | AuditScored
    | ReauditDone
    | Applied
    | UpdateHeld
    | UpdateBad
    | UpdatesGone
    | Connected
    | Disconnected
    | Rebased
    | LeaveRequested
)
