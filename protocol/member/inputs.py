"""What a member is told: what arrived, what came of its wishes, what time it is.

The runner of the state machine (the daemon, the simulator) hands these to `Member.handle` in the order
in which they happen, and carries out the effects that come back (`effects`).
"""

from __future__ import annotations

from dataclasses import dataclass

from ...crypto.envelope import Envelope
from ...crypto.hashing import ContentId
from ...crypto.identity import PeerId
from ..chain.ledger import Ledger
from ..checks.accounts import FirstLook
from ..wire.messages import Decided, Score, SnapshotEntry


@dataclass(frozen=True)
class Tick:
    """Time passes. To be said at least a few times a second."""


@dataclass(frozen=True)
class Heard:
    """A message arrived, by gossip or in an answer. Its signature was checked."""

    envelope: Envelope


@dataclass(frozen=True)
class Learned:
    """A ledger entry arrived, from whomever."""

    decided: Decided


@dataclass(frozen=True)
class Recalled:
    """Every other member was asked what it knows of `round`, and has answered (`Recall`)."""

    round: int


@dataclass(frozen=True)
class Loaded:
    """The parameters now are those after `round`, out of a snapshot.

    `snapshot` is that of `round` if one was due there."""

    round: int
    fingerprint: int
    snapshot: SnapshotEntry | None


@dataclass(frozen=True)
class Trained:
    """The own update for `round` is in the store (`Train`)."""

    round: int
    dealt: int
    """The round that deals its samples."""
    update: ContentId
    size: int
    tokens: int
    loss: float
    sequences: int = 0
    """How many were computed."""
    computing: float = 0.0
    """Seconds that this took; it is in proportion to the sequences."""
    encoding: float = 0.0
    """Seconds that any update takes."""


@dataclass(frozen=True)
class Judged:
    """What came of a look (`Judge`), in whole numbers (`checks/agreement`); `squares` is 0 where there
    was nothing to compare. `beginning`: of the sequence's first half alone, where it has one."""

    round: int
    total: int
    squares: int
    beginning: Score | None = None


@dataclass(frozen=True)
class LookedAgain:
    """What came of a second look (`LookAgain`): of each sample, in order."""

    first: FirstLook
    scores: tuple[Score, ...]


@dataclass(frozen=True)
class Applied:
    """The record of `round` is in the parameters (`Apply`)."""

    round: int
    fingerprint: int
    snapshot: SnapshotEntry | None
    seconds: float = 0.0
    """How long that took."""


@dataclass(frozen=True)
class UpdateHeld:
    """The bytes of `update` are in the store and passed the codec's checks (`FetchUpdate`)."""

    update: ContentId


@dataclass(frozen=True)
class UpdateBad:
    """The bytes of `update` are not an update of this swarm's layout."""

    update: ContentId


@dataclass(frozen=True)
class UpdatesGone:
    """Nobody has the updates of `round` any more."""

    round: int


@dataclass(frozen=True)
class Connected:
    """There is a connection to `peer`."""

    peer: PeerId


@dataclass(frozen=True)
class Disconnected:
    """The last connection to `peer` broke."""

    peer: PeerId


@dataclass(frozen=True)
class Rebased:
    """The chains were compared, and this one is to be followed instead (`Fork`)."""

    ledger: Ledger


@dataclass(frozen=True)
class Goodbye:
    """This node is to leave. It should stay until it is no member, or its patience ends."""


Input = (
    Tick
    | Heard
    | Learned
    | Recalled
    | Loaded
    | Trained
    | Judged
    | LookedAgain
    | Applied
    | UpdateHeld
    | UpdateBad
    | UpdatesGone
    | Connected
    | Disconnected
    | Rebased
    | Goodbye
)
