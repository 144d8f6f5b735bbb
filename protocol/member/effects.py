"""What a member wants done in the world.

The state machine returns these in order; its runner (the daemon, the simulator) carries them out in that
order and reports back (`inputs`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...crypto.envelope import Envelope
from ...crypto.hashing import ContentId
from ...crypto.identity import PeerId
from ..chain.stepping import Needed
from ..checks.accounts import FirstLook
from ..checks.changes import ChangeKind
from ..wire.checkpoint import Checkpoint
from ..wire.messages import Decided, Record, RecordId


@dataclass(frozen=True)
class Publish:
    """Gossip a message. If `durable`, it must be on disk before anybody sees it, so that a restart
    cannot make this member contradict itself."""

    envelope: Envelope
    durable: bool


@dataclass(frozen=True)
class Remember:
    """Put a message on disk, before anything that follows: the proposal that a vote is about to be cast
    for, or an own message that was lost. To be handed to `Member.restore` after a restart."""

    envelope: Envelope


@dataclass(frozen=True)
class Recall:
    """Ask every other member for its messages of `round`, hand them in, then report `recalled`."""

    round: int


@dataclass(frozen=True)
class FetchUpdate:
    """Get the update `update`, which `peer` announced for `round`; check it; report (`fetching`).

    `size` is what the announcement or a record says that it has: a hint."""

    round: int
    peer: PeerId
    update: ContentId
    size: int


@dataclass(frozen=True)
class Train:
    """Train on these samples for `round`; then report the update.

    `parent` is the last record, of the round before or, with `overlap`, of the one before that."""

    round: int
    parent: RecordId
    samples: tuple[int, ...]
    dealt: int
    """The round that deals them."""
    look: int | None = None
    """A sample of somebody else's share, to be computed as well (`Judge`)."""
    look_share: int = 0
    """How many samples that share has."""

    @property
    def aside(self) -> bool:
        """Rounds are to be applied meanwhile: there are several until it is due."""
        return self.dealt < self.round


@dataclass(frozen=True)
class Tally:
    """Say what comes of the sheets that the record before `round` names, for one section of the model;
    report it as the update of `round` (`Trained`)."""

    round: int
    section: int
    sections: int
    told: Record
    counts: tuple[int, ...]
    """How often each of its sheets counts in the sums, in their order."""
    agreed: tuple[ContentId, ...]
    """The section's tallies that counted in the steps of the term before this one, since the last step
    in which none did."""
    patience: float
    """How many seconds to wait for sheets that are not here yet."""


@dataclass(frozen=True)
class Judge:
    """Say how well this update agrees with the sample that was looked at in `round`; then report."""

    round: int
    update: ContentId


@dataclass(frozen=True)
class LookAgain:
    """Make the parameters of before `first.round` again, and say how well the update agrees with each of
    these samples, out of a share of so many; then report. There is time for it: some rounds."""

    first: FirstLook
    update: ContentId
    samples: tuple[int, ...]
    share: int


@dataclass(frozen=True)
class Apply:
    """Apply a decided record; then report the new fingerprint.

    `needed` are the updates that it takes, all of which are held (`chain.stepping`); `own_counted` says
    whether this member's own update is among them; if not, it is refunded. `snapshot_due` asks for a
    snapshot of the new state.
    """

    record: Record
    needed: tuple[Needed, ...]
    own_counted: bool
    snapshot_due: bool


@dataclass(frozen=True)
class Keep:
    """Write a new ledger entry to disk."""

    decided: Decided


@dataclass(frozen=True)
class KeepFinal:
    """Write to disk that this record is final: after a restart the node goes back behind it no more than
    before. The entries up to it must be on the disk first."""

    checkpoint: Checkpoint


@dataclass(frozen=True)
class AskSync:
    """Ask a peer for everything it knows of `round` and later: something may have been lost."""

    round: int


@dataclass(frozen=True)
class Resync:
    """The parameters are not what the swarm agreed on: load the last certified snapshot and replay."""

    reason: str


@dataclass(frozen=True)
class Fork:
    """Somebody has another record for `round`, or for one before it: compare the chains.

    The record is not checked, since its chain is not known here."""

    round: int


NoteKind = Literal[
    "decided",
    "joined",
    "left",
    "silent",
    "turned_away",
    "admitted",
    "counted_out",
    "expelled",
    "late",
    "skipped",
    "incomplete",
    "mismatch",
    "forked",
    "moved_on",
    "version",
    # Where work is checked.
    ChangeKind,
    "voters",
]


@dataclass(frozen=True)
class Note:
    """Something people and metrics want to know. It has no consequence for the protocol."""

    kind: NoteKind
    round: int
    peer: PeerId | None = None
    text: str = ""


Effect = (
    Publish
    | Remember
    | Recall
    | FetchUpdate
    | Train
    | Tally
    | Judge
    | LookAgain
    | Apply
    | Keep
    | KeepFinal
    | AskSync
    | Resync
    | Fork
    | Note
)
