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
from ..audit.reputation import Audit
from ..audit.reputation_events import ReputationEventKind
from ..chain.step_inputs import StepBody
from ..wire.checkpoint import Checkpoint
from ..wire.messages import Decided, Record, RecordId


@dataclass(frozen=True)
class Publish:
    """Gossip a message. If `durable`, it must be on disk before any peer sees it, so that a restart
    cannot make this member contradict itself."""

    envelope: Envelope
    durable: bool


@dataclass(frozen=True)
class LogMessage:
    """Write a message to disk before any later effect: the proposal that this member is about to vote
    for, or an own message that was lost. `Member.restore` takes it after a restart."""

    envelope: Envelope


@dataclass(frozen=True)
class RecallOwnMessages:
    """Ask every other member for its messages of `round`, pass them in, then report `Recalled`."""

    round: int


@dataclass(frozen=True)
class FetchUpdate:
    """Fetch the update `update`, which `peer` announced for `round`; check it; report (`update_fetch`).

    `size`, from the announcement or a record, is a hint."""

    round: int
    peer: PeerId
    update: ContentId
    size: int


@dataclass(frozen=True)
class Train:
    """Train on these samples for `round`; then report the update.

    `parent` is the record of the round before or, with `overlap`, of the one before that."""

    round: int
    parent: RecordId
    samples: tuple[int, ...]
    assigned_in: int
    """The round that assigns them."""
    audit: int | None = None
    """A sample of another member's share to compute as well, for an audit (`ScoreAudit`)."""
    audit_share: int = 0
    """Number of samples in that share."""

    @property
    def long(self) -> bool:
        """Whether rounds are applied during this training, since it is due several rounds later."""
        return self.assigned_in < self.round


@dataclass(frozen=True)
class MakeAggregate:
    """Aggregate one section of the model from the sign votes named by the record before `round`; report
    it as the update of `round` (`Trained`)."""

    round: int
    section: int
    sections: int
    sign_votes: Record
    counts: tuple[int, ...]
    """Weights of its sign votes in the sums, in their order."""
    agreed: tuple[ContentId, ...]
    """The section's aggregates that counted in the steps of the epoch before this one, since the last
    step in which none did."""
    patience: float
    """Seconds to wait for sign votes that are not here yet."""


@dataclass(frozen=True)
class ScoreAudit:
    """Score how well this update agrees with the sample audited in `round`; then report."""

    round: int
    update: ContentId


@dataclass(frozen=True)
class RunReaudit:
    """Re-audit: rebuild the parameters of before `first.round` and score how well the update agrees with
    each of these samples of a `share`; then report. There are several rounds of time for it."""

    first: Audit
    update: ContentId
    samples: tuple[int, ...]
    share: int


@dataclass(frozen=True)
class Apply:
    """Apply a decided record; then report the new fingerprint.

    `needed` are its updates, all held (`chain.stepping`); `own_counted` says whether this
    member's own update is among them; if not, it is refunded. `snapshot_due` asks for a snapshot of the
    new state.
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
    """Write to disk that this record is final, so that after a restart the node still does not go back
    before it. The entries up to it must be on disk first."""

    checkpoint: Checkpoint


@dataclass(frozen=True)
class AskSync:
    """Ask a peer for all records and messages from `round` on: something may have been lost."""

    round: int


@dataclass(frozen=True)
class Resync:
    """Load the last certified snapshot and replay: the parameters are not the swarm's."""

    reason: str
    failed: int = 0
    """Number of replays in a row whose result did not match the swarm's parameters. Chance does not
    explain several: this computer computes wrongly, or the swarm does."""


@dataclass(frozen=True)
class CompareChains:
    """Compare chains: a peer has another record for `round`, or for an earlier round.

    That record is not checked, since its chain is not known here."""

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
    # In swarms with audits.
    ReputationEventKind,
    "voters",
]


@dataclass(frozen=True)
class Note:
    """Event for people and metrics, without consequence for the protocol."""

    kind: NoteKind
    round: int
    peer: PeerId | None = None
    text: str = ""


Effect = (
    Publish
    | LogMessage
    | RecallOwnMessages
    | FetchUpdate
    | Train
    | MakeAggregate
    | ScoreAudit
    | RunReaudit
    | Apply
    | StoreEntry
    | StoreFinality
    | AskSync
    | Resync
    | CompareChains
    | Note
)
