"""Effects: the actions that a member requests from its runner.

The state machine returns them in order; the runner (the daemon, the simulator) carries them out in that
order and reports the results (`inputs`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...crypto.envelope import Envelope
from ...crypto.hashing import ContentId
from ...crypto.identity import PeerId
from ..chain.step_inputs import StepBody
from ..wire.checkpoint import Checkpoint
from ..wire.messages import Decided, Message, Record, RecordId


@dataclass(frozen=True)
class FeatureEffect:
    """Action that a feature requests (`member_part`); each feature has its own kinds beside its part."""


@dataclass(frozen=True)
class Publish:
    """Gossip a message. If `durable`, it must be on disk before any peer sees it, so that a restart
    cannot make this member contradict itself."""

    envelope: Envelope
    durable: bool
    message: Message
    """The message inside."""


@dataclass(frozen=True)
class LogMessage:
    """Write a message to disk before any later effect: a proposal or vote of others on which this member
    is about to vote or finalize, or an own message that was lost. `Member.restore` takes it after a
    restart."""

    envelope: Envelope


@dataclass(frozen=True)
class RecallOwnMessages:
    """Ask every other member for the messages of `round` that it has; pass them in; report `Recalled`.
    They contain this member's own messages, which it may have lost."""

    round: int


@dataclass(frozen=True)
class FetchUpdate:
    """Fetch the update `update`, which `peer` announced for `round`; check it; report the result
    (`update_fetch`).

    `size`, from the announcement or a record, is only a hint."""

    round: int
    peer: PeerId
    update: ContentId
    size: int


@dataclass(frozen=True)
class Train:
    """Train on these samples for `round`; then report the update (`Trained`).

    `parent` is the record of the round before or, with `overlap`, of the one before that."""

    round: int
    parent: RecordId
    samples: tuple[int, ...]
    assigned_in: int
    """The round that assigns the samples."""
    audit: int | None = None
    """A sample of another member's share to compute as well, for an audit (`auditor`)."""
    audit_share: int = 0
    """Number of samples in that share."""

    @property
    def long(self) -> bool:
        """Whether rounds are applied during this training, since it is due several rounds later."""
        return self.assigned_in < self.round


@dataclass(frozen=True)
class Apply:
    """Apply a decided record; then report the new fingerprint (`Applied`).

    `needed` are its updates, all held (`chain.step_inputs`). `own_counted` says whether this member's
    own update counts; if not, it is refunded. `snapshot_due` asks for a snapshot of the new parameters.
    """

    record: Record
    needed: tuple[StepBody, ...]
    own_counted: bool
    snapshot_due: bool


@dataclass(frozen=True)
class StoreEntry:
    """Write a new ledger entry to disk."""

    decided: Decided


@dataclass(frozen=True)
class StoreFinality:
    """Write to disk that this record is final, so that the node does not go back before it even after a
    restart. The ledger entries up to it must be on disk first."""

    checkpoint: Checkpoint


@dataclass(frozen=True)
class AskSync:
    """Ask a peer for all records and messages from `round` on: something may have been lost."""

    round: int


@dataclass(frozen=True)
class Resync:
    """Load the last certified snapshot and replay the records after it: the parameters are not the
    swarm's, or are too far behind; see `reason`."""

    reason: str
    failed: int = 0
    """Number of mismatches in a row between the parameters here and the swarm's. Chance does not explain
    several: this computer computes wrongly, or the swarm does."""


@dataclass(frozen=True)
class CompareChains:
    """Compare chains with the peers: some peer may have another record for `round`, or for an earlier
    round.

    That record was not checked, since its chain is not known here."""

    round: int


NoteKind = Literal[
    "decided",
    "joined",
    "left",
    "silent",
    "dismissed",
    "admitted",
    "presumed_gone",
    "expelled",
    "late",
    "skipped",
    "incomplete",
    "mismatch",
    "forked",
    "finalized",
    "version",
]


@dataclass(frozen=True)
class Note:
    """Event for people and metrics, without consequence for the protocol."""

    kind: NoteKind | str
    """One of `NoteKind`, or a feature's own kind."""
    round: int
    peer: PeerId | None = None
    text: str = ""


Effect = (
    Publish
    | LogMessage
    | RecallOwnMessages
    | FetchUpdate
    | Train
    | FeatureEffect
    | Apply
    | StoreEntry
    | StoreFinality
    | AskSync
    | Resync
    | CompareChains
    | Note
)
