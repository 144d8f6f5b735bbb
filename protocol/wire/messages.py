"""What members say to each other.

Every message is a frozen dataclass in the positional canonical encoding (`wire`), carried in a
signed envelope whose kind is the message's. A record embeds the signatures of what it reports
(updates, admissions, leaves), so that a reader can check it without having heard the originals.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal, NewType

from ...crypto.envelope import Envelope
from ...crypto.hashing import ContentId, content_id
from ...crypto.identity import PeerId
from .encoding import decode, encode
from .errors import ProtocolError
from .structure import ADDITION, U63, U64, Length, Range

# A proposal names the update of each of 1,024 members at some 200 bytes, and may hold 20 KB of looks.
# All else is far smaller.
MAX_MESSAGE_BYTES = 256 * 1024

RecordId = NewType("RecordId", bytes)
"""Content id of a record's canonical encoding, 32 bytes. Round 0's parent is the swarm-id."""

RecordRef = Annotated[RecordId, Length(32, 32)]
Signature = Annotated[bytes, Length(64, 64)]
Slot = Annotated[int, Range(1, 1 << 20)]
# Ten million in a second at the most.
Capacity = Annotated[int, Range(0, 1 << 40)]
Version = Annotated[int, Range(0, 1 << 16)]
Secret = Annotated[bytes, Length(16, 16)]
# One that a leader reveals; nothing if it was bound to none.
Revealed = Annotated[bytes, Length(0, 16)]
# A content id, or nothing where nothing is drawn.
Commitment = Annotated[bytes, Length(0, 32)]
# The hash of all contributions (`checks/contributions`), or nothing.
Root = Annotated[bytes, Length(0, 32)]
# Of a check, in whole numbers (`checks/agreement`).
Total = Annotated[int, Range(-(1 << 62), 1 << 62)]
Squares = Annotated[int, Range(1, 1 << 62)]
# A bit for each member, in the order of the round's membership. 4,096 members at most.
Mask = Annotated[bytes, Length(1, 512)]

MAX_EVIDENCE = 16
"""Members expelled by one record; more of them wait for the next."""

MAX_LOOKS = 64
"""First looks in one record. There is one in some rounds of each member with votes."""

MAX_LOOKS_AGAIN = 64
"""Second looks in one record: those of a few disputes."""

MAX_SEQUENCES = 8
"""Sequences that a second look takes (`checks/disputes`)."""

TICKET_KIND = "ticket"
"""The envelope kind of an invitation: the issuer's signature over the guest's peer id."""

NO_BLOCK = RecordId(bytes(32))
"""What a skip names instead of a block."""


@dataclass(frozen=True)
class Announcement:
    """ "My update for this round is this blob." `fingerprint` is that of the parameters trained from.

    `tokens` were trained on, with the mean `loss` in nats a token. `capacity` is how many sequences the
    sender could train in a day, if rounds went on like the last ones; 0 if it does not know yet.
    `speaks` is the highest version of the protocol that it speaks; 0 says nothing. `commitment` binds
    the sender to a secret that draws at whose work it looks (`checks/draw`).
    """

    round: U63
    parent: RecordRef
    update: ContentId
    size: Annotated[int, Range(1, 1 << 32)]
    tokens: U63
    loss: Annotated[float, Range(-1e30, 1e30)]
    fingerprint: U64
    capacity: Capacity = 0
    speaks: Version = 0
    commitment: Commitment = field(default=b"", metadata=ADDITION)


@dataclass(frozen=True)
class JoinRequest:
    """ "Admit me; I have applied all before `round`, or nearly." The ticket answers an invite policy."""

    round: U63
    ticket: Annotated[bytes, Length(0, 64)]


@dataclass(frozen=True)
class Leave:
    """ "I go; do not wait for me from `round` on." """

    round: U63


@dataclass(frozen=True)
class Heartbeat:
    """ "I am alive and work on `round`": said when there was nothing else to say for a while.

    `count` grows from one heartbeat of a peer to the next, over restarts too.
    """

    round: U63
    count: U63


@dataclass(frozen=True)
class Score:
    """Of one sequence, or of its beginning: `total` / √`squares`."""

    total: Total
    squares: Squares


@dataclass(frozen=True)
class Check:
    """ "My secret drew somebody's sequence of `round`, and their update agrees with it so well."

    Whom and which, the secret says (`chain/checked`). The score is `total` / √`squares`; `beginning` is
    that of the sequence's first half alone, where the task has one.
    """

    round: U63
    parent: RecordRef
    secret: Secret
    total: Total
    squares: Squares
    beginning: Score | None = field(default=None, metadata=ADDITION)


@dataclass(frozen=True)
class Recheck:
    """ "I was called to look again at what `checker` found low in `round`: the share's sequences score
    so." Who is called, and to which sequences, everybody knows (`chain/checked`); they are in order."""

    round: U63
    parent: RecordRef
    checker: PeerId
    scores: Annotated[tuple[Score, ...], Length(1, MAX_SEQUENCES)]


@dataclass(frozen=True)
class UpdateEntry:
    """An announcement inside a record; round, parent and fingerprint are the record's own."""

    peer: PeerId
    update: ContentId
    size: Annotated[int, Range(1, 1 << 32)]
    tokens: U63
    loss: Annotated[float, Range(-1e30, 1e30)]
    signature: Signature
    capacity: Capacity = 0
    speaks: Version = 0
    commitment: Commitment = field(default=b"", metadata=ADDITION)


@dataclass(frozen=True)
class AdmissionEntry:
    """A join request inside a record."""

    peer: PeerId
    request: JoinRequest
    signature: Signature


@dataclass(frozen=True)
class DepartureEntry:
    """A member that is gone: it said so (its signed `Leave` for round `round`), fell silent, or was
    turned away, since it had not done its work (`checks/accounts`)."""

    peer: PeerId
    reason: Literal["left", "silent", "turned_away"]
    round: U63
    signature: Annotated[bytes, Length(0, 64)]


BallotKind = Literal["vote", "skip", "finalize"]
BALLOT_KINDS: tuple[BallotKind, ...] = ("vote", "skip", "finalize")


@dataclass(frozen=True)
class Testimony:
    """One of the two ballots of an `Evidence`; what they have in common stands there."""

    kind: BallotKind
    block: RecordRef
    silent: Mask
    signature: Signature


@dataclass(frozen=True)
class SignedAnnouncement:
    """An announcement and its sender's signature."""

    announcement: Announcement
    signature: Signature


@dataclass(frozen=True)
class Evidence:
    """Two ballots that `peer` signed in one slot and may not both have signed, or two announcements that
    it made in one round.

    The ballot with the lesser (kind, block) comes first, and the announcement with the lesser encoding,
    so that a contradiction has one spelling. For announcements the slot is 1.
    """

    peer: PeerId
    round: U63
    parent: RecordRef
    slot: Slot
    first: Testimony | None
    second: Testimony | None
    announcements: Annotated[tuple[SignedAnnouncement, ...], Length(0, 2)] = field(
        default=(), metadata=ADDITION
    )

    def ballot(self, testimony: Testimony) -> Ballot:
        """The ballot as the accused signed it."""
        return Ballot(self.round, self.parent, self.slot, testimony.block, testimony.silent)


@dataclass(frozen=True)
class WitnessEntry:
    """A finalize of the round before, for the record before: its signer stands on this chain.

    For members without an update in the record, so that who is always late counts as well (`finality`).
    """

    peer: PeerId
    slot: Slot
    silent: Mask
    signature: Signature


@dataclass(frozen=True)
class LookEntry:
    """A check inside a record."""

    checker: PeerId
    round: U63
    secret: Secret
    total: Total
    squares: Squares
    signature: Signature
    beginning: Score | None = field(default=None, metadata=ADDITION)

    def said(self, parent: RecordId) -> Check:
        """The check as its sender signed it; `parent` is that of its round."""
        return Check(self.round, parent, self.secret, self.total, self.squares, self.beginning)


@dataclass(frozen=True)
class LookAgainEntry:
    """A second look inside a record."""

    looker: PeerId
    round: U63
    checker: PeerId
    scores: Annotated[tuple[Score, ...], Length(1, MAX_SEQUENCES)]
    signature: Signature

    def said(self, parent: RecordId) -> Recheck:
        """The second look as its sender signed it; `parent` is that of its round."""
        return Recheck(self.round, parent, self.checker, self.scores)


@dataclass(frozen=True)
class SnapshotEntry:
    """The state after `round` as the blob list `blob`: certified, since a quorum voted for it."""

    round: U63
    blob: ContentId
    size: Annotated[int, Range(1, 1 << 50)]


@dataclass(frozen=True)
class Record:
    """What the members agree on in a round. Entries are sorted by peer, each peer at most once."""

    round: U63
    parent: RecordRef
    fingerprint: U64
    updates: Annotated[tuple[UpdateEntry, ...], Length(0, 4096)]
    admitted: Annotated[tuple[AdmissionEntry, ...], Length(0, 4096)]
    departed: Annotated[tuple[DepartureEntry, ...], Length(0, 4096)]
    snapshot: SnapshotEntry | None
    evidence: Annotated[tuple[Evidence, ...], Length(0, MAX_EVIDENCE)] = ()
    witnesses: Annotated[tuple[WitnessEntry, ...], Length(0, 4096)] = ()
    looks: Annotated[tuple[LookEntry, ...], Length(0, MAX_LOOKS)] = field(
        default=(), metadata=ADDITION
    )
    looks_again: Annotated[tuple[LookAgainEntry, ...], Length(0, MAX_LOOKS_AGAIN)] = field(
        default=(), metadata=ADDITION
    )
    contributions: Root = field(default=b"", metadata=ADDITION)
    """Beside a snapshot, where work is checked: what everybody has done in the rounds before."""
    slot: Slot = field(default=1, metadata=ADDITION)
    """In which it was proposed first: all slots before were skipped (`chain/leaders`)."""
    secret: Revealed = field(default=b"", metadata=ADDITION)
    """Where something is drawn: that to which the slot's leader was bound (`chain/beacon`)."""

    @cached_property
    def id(self) -> RecordId:
        """The record's id: what votes are for and what the next record names as its parent."""
        return RecordId(content_id(encode(self)))

    def update_by(self, peer: PeerId) -> UpdateEntry | None:
        """The update of a member that counts; None if none does."""
        return next((entry for entry in self.updates if entry.peer == peer), None)

    def announcement(self, entry: UpdateEntry) -> Announcement:
        """The announcement that `entry` reports, as its sender signed it."""
        return Announcement(
            round=self.round,
            parent=self.parent,
            update=entry.update,
            size=entry.size,
            tokens=entry.tokens,
            loss=entry.loss,
            fingerprint=self.fingerprint,
            capacity=entry.capacity,
            speaks=entry.speaks,
            commitment=entry.commitment,
        )


@dataclass(frozen=True)
class Proposal:
    """The leader of a slot proposes a record."""

    slot: Slot
    record: Record


@dataclass(frozen=True)
class Ballot:
    """A vote, a skip (`block` is `NO_BLOCK`) or a finalize; which one, the envelope's kind says.

    `silent` marks the members of the round that the sender has heard nothing from for a lease, or
    that have taken leave.
    """

    round: U63
    parent: RecordRef
    slot: Slot
    block: RecordRef
    silent: Mask


MESSAGE_TYPES: dict[str, type] = {
    "announcement": Announcement,
    "join": JoinRequest,
    "leave": Leave,
    "heartbeat": Heartbeat,
    "proposal": Proposal,
    "vote": Ballot,
    "skip": Ballot,
    "finalize": Ballot,
    "evidence": Evidence,
    "check": Check,
    "recheck": Recheck,
}
"""Message type by envelope kind."""

Message = (
    Announcement | JoinRequest | Leave | Heartbeat | Proposal | Ballot | Evidence | Check | Recheck
)


def round_of(message: Message) -> int:
    """The round that a message is about."""
    return message.record.round if isinstance(message, Proposal) else message.round


def parent_of(message: Message) -> RecordId | None:
    """The record that a message builds on, if its kind names one."""
    if isinstance(message, Proposal):
        return message.record.parent
    if isinstance(message, (JoinRequest, Leave, Heartbeat)):
        return None
    return message.parent


def decode_message(envelope: Envelope) -> Message:
    """Decode an envelope's body as its kind says. Raises `ProtocolError`."""
    cls = MESSAGE_TYPES.get(envelope.kind)
    if cls is None:
        raise ProtocolError("unknown_kind", f"unknown kind of message {envelope.kind!r}")
    return decode(cls, envelope.body, max_bytes=MAX_MESSAGE_BYTES)


@dataclass(frozen=True)
class SignedBallot:
    """One signer's part of a certificate; the rest of its ballot is common to all."""

    peer: PeerId
    silent: Mask
    signature: Signature


@dataclass(frozen=True)
class Certificate:
    """A quorum's ballots of one kind for one slot and block. Sorted by peer."""

    kind: BallotKind
    round: U63
    parent: RecordRef
    slot: Slot
    block: RecordRef
    ballots: Annotated[tuple[SignedBallot, ...], Length(1, 4096)]

    def ballot(self, signed: SignedBallot) -> Ballot:
        """The ballot as its sender signed it."""
        return Ballot(
            round=self.round,
            parent=self.parent,
            slot=self.slot,
            block=self.block,
            silent=signed.silent,
        )


@dataclass(frozen=True)
class Decided:
    """A record with the certificate of finalizes that decided it: one entry of the ledger."""

    record: Record
    certificate: Certificate
