"""Messages between members.

Every message is a frozen dataclass in the positional canonical encoding (`encoding`), carried in a
signed envelope whose `kind` states the message's type (`MESSAGE_TYPES`). A record embeds the signatures
of what it reports (updates, admissions, leaves), so that a reader can check it without the originals.
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

# A proposal takes about 200 bytes for the update of each of 1,024 members, and may hold 20 KB of audits.
# All other messages are far smaller.
MAX_MESSAGE_BYTES = 256 * 1024

RecordId = NewType("RecordId", bytes)
"""Content id of a record's canonical encoding, 32 bytes. Round 0's parent is the swarm-id."""

RecordRef = Annotated[RecordId, Length(32, 32)]
Signature = Annotated[bytes, Length(64, 64)]
Slot = Annotated[int, Range(1, 1 << 20)]
# Sequences per day, at most about ten million per second.
Capacity = Annotated[int, Range(0, 1 << 40)]
Version = Annotated[int, Range(0, 1 << 16)]
# A secret of 16 bytes, and the hash of the other secret of the same commitment (`chain/commitments`).
Opening = Annotated[bytes, Length(48, 48)]
# What a leader reveals; empty if the leader had committed to nothing.
Revealed = Annotated[bytes, Length(0, 48)]
# A content id, by which a member commits to two secrets; empty in a swarm without a beacon.
Commitment = Annotated[bytes, Length(0, 32)]
# The hash of all contributions (`audit/contributions`); empty if none is due.
Root = Annotated[bytes, Length(0, 32)]
# Score of an audit, in integers (`audit/sign_score`).
Total = Annotated[int, Range(-(1 << 62), 1 << 62)]
Squares = Annotated[int, Range(1, 1 << 62)]
# One bit per member, in the order of the round's membership. At most 4,096 members.
Mask = Annotated[bytes, Length(1, 512)]

MAX_EVIDENCE = 16
"""Maximum number of members expelled by one record; others wait for the next."""

MAX_AUDITS = 64
"""Maximum number of audits in one record. Each member with votes audits in some rounds."""

MAX_REAUDITS = 64
"""Maximum number of re-audits in one record: those of a few disputes."""

MAX_SEQUENCES = 8
"""Maximum number of sequences in a re-audit (`audit/disputes`)."""

TICKET_KIND = "ticket"
"""The envelope kind of an invitation: the issuer's signature over the guest's peer id."""

NO_BLOCK = RecordId(bytes(32))
"""The block of a skip."""


@dataclass(frozen=True)
class Announcement:
    """Announcement of the sender's update for a round. `fingerprint` is that of the parameters at the
    start of the round.

    The update was trained on `tokens`, with the mean `loss` in nats per token. `capacity` is the number
    of sequences that the sender could train per day if rounds stay as the last ones were; 0 if unknown.
    `max_version` is its highest protocol version; 0 states none. `commitment` binds the sender to
    two secrets (`chain/commitments`): one is its part of a later beacon, the other draws whose work it
    audits (`audit/lottery`).
    """

    round: U63
    parent: RecordRef
    update: ContentId
    size: Annotated[int, Range(1, 1 << 32)]
    tokens: U63
    loss: Annotated[float, Range(-1e30, 1e30)]
    fingerprint: U64
    capacity: Capacity = 0
    max_version: Version = 0
    commitment: Commitment = field(default=b"", metadata=ADDITION)


@dataclass(frozen=True)
class JoinRequest:
    """Request for admission by a peer whose parameters have (nearly) reached `round`; with a ticket if
    required."""

    round: U63
    ticket: Annotated[bytes, Length(0, 64)]


@dataclass(frozen=True)
class Leave:
    """Departure of the sender: the others should not wait for it from `round` on."""

    round: U63


@dataclass(frozen=True)
class Heartbeat:
    """Sign of life while working on `round`, sent after a while without other messages.

    `count` increases with each heartbeat of a peer, even across restarts.
    """

    round: U63
    count: U63


@dataclass(frozen=True)
class AuditScore:
    """Score of a sequence, or of its first half: `total` / √`squares`."""

    total: Total
    squares: Squares


@dataclass(frozen=True)
class AuditMessage:
    """Audit: how well the drawn member's update of `round` agrees with one of its sequences.

    The secret in `opening` determines the member and the sequence (`chain/audits`). The score is
    `total` / √`squares`; `first_half` is the score of the sequence's first half alone, if there is one.
    """

    round: U63
    parent: RecordRef
    opening: Opening
    total: Total
    squares: Squares
    first_half: AuditScore | None = field(default=None, metadata=ADDITION)


@dataclass(frozen=True)
class ReauditMessage:
    """Re-audit of a share that the audit of `auditor` found low in `round`: the scores of its sequences,
    in order. The chain determines who re-audits which sequences (`chain/audits`)."""

    round: U63
    parent: RecordRef
    auditor: PeerId
    scores: Annotated[tuple[AuditScore, ...], Length(1, MAX_SEQUENCES)]


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
    max_version: Version = 0
    commitment: Commitment = field(default=b"", metadata=ADDITION)


@dataclass(frozen=True)
class AdmissionEntry:
    """A join request inside a record."""

    peer: PeerId
    request: JoinRequest
    signature: Signature


@dataclass(frozen=True)
class DepartureEntry:
    """Departure inside a record: the member took leave (with its signed `Leave` for round `round`), fell
    silent, or was dismissed because it had not done its work (`audit/reputation`)."""

    peer: PeerId
    reason: Literal["left", "silent", "dismissed"]
    round: U63
    signature: Annotated[bytes, Length(0, 64)]


BallotKind = Literal["vote", "skip", "finalize"]
BALLOT_KINDS: tuple[BallotKind, ...] = ("vote", "skip", "finalize")


@dataclass(frozen=True)
class BallotHalf:
    """One of the two ballots of an `Evidence`; the fields that they share are in the `Evidence`."""

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
    """Proof of a contradiction: two ballots of `peer` in one slot, of which it may sign only one, or two
    different announcements of `peer` in one round.

    The ballot with the smaller (kind, block) comes first, or the announcement with the smaller encoding,
    so that a contradiction has only one encoding. For announcements the slot is 1.
    """

    peer: PeerId
    round: U63
    parent: RecordRef
    slot: Slot
    first: BallotHalf | None
    second: BallotHalf | None
    announcements: Annotated[tuple[SignedAnnouncement, ...], Length(0, 2)] = field(
        default=(), metadata=ADDITION
    )

    def ballot(self, testimony: BallotHalf) -> Ballot:
        """Return the ballot as the accused signed it."""
        return Ballot(self.round, self.parent, self.slot, testimony.block, testimony.silent)


@dataclass(frozen=True)
class WitnessEntry:
    """Finalize of the previous round's record: it proves that its signer is on this chain.

    A record has witness entries for members without an update in it, so that members that are always
    late count for finality as well (`finality`).
    """

    peer: PeerId
    slot: Slot
    silent: Mask
    signature: Signature


@dataclass(frozen=True)
class AuditEntry:
    """Audit inside a record."""

    auditor: PeerId
    round: U63
    opening: Opening
    total: Total
    squares: Squares
    signature: Signature
    first_half: AuditScore | None = field(default=None, metadata=ADDITION)

    def message(self, parent: RecordId) -> AuditMessage:
        """Return the audit as its sender signed it; `parent` is the record before its round."""
        return AuditMessage(
            self.round, parent, self.opening, self.total, self.squares, self.first_half
        )


@dataclass(frozen=True)
class ReauditEntry:
    """Re-audit inside a record."""

    reauditor: PeerId
    round: U63
    auditor: PeerId
    scores: Annotated[tuple[AuditScore, ...], Length(1, MAX_SEQUENCES)]
    signature: Signature

    def message(self, parent: RecordId) -> ReauditMessage:
        """Return the re-audit as its sender signed it; `parent` is the record before its round."""
        return ReauditMessage(self.round, parent, self.auditor, self.scores)


@dataclass(frozen=True)
class SnapshotEntry:
    """Snapshot after `round`, with `size` bytes, as the blob list `blob`. It is certified because a
    quorum voted for the record."""

    round: U63
    blob: ContentId
    size: Annotated[int, Range(1, 1 << 50)]


@dataclass(frozen=True)
class Record:
    """Block of the ledger: what members agree on in a round. Entries are sorted by peer. `fingerprint`
    is that of the parameters at the start of the round."""

    round: U63
    parent: RecordRef
    fingerprint: U64
    updates: Annotated[tuple[UpdateEntry, ...], Length(0, 4096)]
    admitted: Annotated[tuple[AdmissionEntry, ...], Length(0, 4096)]
    departed: Annotated[tuple[DepartureEntry, ...], Length(0, 4096)]
    snapshot: SnapshotEntry | None
    evidence: Annotated[tuple[Evidence, ...], Length(0, MAX_EVIDENCE)] = ()
    witnesses: Annotated[tuple[WitnessEntry, ...], Length(0, 4096)] = ()
    audits: Annotated[tuple[AuditEntry, ...], Length(0, MAX_AUDITS)] = field(
        default=(), metadata=ADDITION
    )
    reaudits: Annotated[tuple[ReauditEntry, ...], Length(0, MAX_REAUDITS)] = field(
        default=(), metadata=ADDITION
    )
    contributions: Root = field(default=b"", metadata=ADDITION)
    """In swarms with audits, if there is a snapshot: hash of all contributions of the rounds before."""
    slot: Slot = field(default=1, metadata=ADDITION)
    """Slot in which the record was first proposed: all earlier slots were skipped (`chain/leaders`)."""
    opening: Revealed = field(default=b"", metadata=ADDITION)
    """In swarms with a beacon: it reveals the secret for the beacon to which the slot's leader had
    committed (`chain/beacon`)."""

    @cached_property
    def id(self) -> RecordId:
        """The record's id: the subject of votes, and the parent named by the next record."""
        return RecordId(content_id(encode(self)))

    def update_by(self, peer: PeerId) -> UpdateEntry | None:
        """Return the counted update of a member; None if there is none."""
        return next((entry for entry in self.updates if entry.peer == peer), None)

    def announcement(self, entry: UpdateEntry) -> Announcement:
        """Return the announcement that `entry` reports, as its sender signed it."""
        return Announcement(
            round=self.round,
            parent=self.parent,
            update=entry.update,
            size=entry.size,
            tokens=entry.tokens,
            loss=entry.loss,
            fingerprint=self.fingerprint,
            capacity=entry.capacity,
            max_version=entry.max_version,
            commitment=entry.commitment,
        )


@dataclass(frozen=True)
class Proposal:
    """Record proposed by the leader of a slot."""

    slot: Slot
    record: Record


@dataclass(frozen=True)
class Ballot:
    """Vote, skip (`block` is `NO_BLOCK`) or finalize, as stated by the envelope's kind.

    `silent` marks the members of the round that the sender has not heard for a lease, or that have
    taken leave.
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
    "audit": AuditMessage,
    "reaudit": ReauditMessage,
}
"""Message type by envelope kind."""

Message = (
    Announcement
    | JoinRequest
    | Leave
    | Heartbeat
    | Proposal
    | Ballot
    | Evidence
    | AuditMessage
    | ReauditMessage
)


def round_of(message: Message) -> int:
    """Return the round of a message."""
    return message.record.round if isinstance(message, Proposal) else message.round


def parent_of(message: Message) -> RecordId | None:
    """Return the record that a message builds on, if its kind names one."""
    if isinstance(message, Proposal):
        return message.record.parent
    if isinstance(message, (JoinRequest, Leave, Heartbeat)):
        return None
    return message.parent


def decode_message(envelope: Envelope) -> Message:
    """Decode an envelope's body as a message of its kind. Raises `ProtocolError` with the reason
    `unknown_kind`, or as `decode` does."""
    cls = MESSAGE_TYPES.get(envelope.kind)
    if cls is None:
        raise ProtocolError("unknown_kind", f"unknown kind of message {envelope.kind!r}")
    return decode(cls, envelope.body, max_bytes=MAX_MESSAGE_BYTES)


@dataclass(frozen=True)
class SignedBallot:
    """One signer's part of a certificate. The ballot's other fields are the same for all signers."""

    peer: PeerId
    silent: Mask
    signature: Signature


@dataclass(frozen=True)
class Certificate:
    """A quorum's ballots of one kind for one slot and block, sorted by peer."""

    kind: BallotKind
    round: U63
    parent: RecordRef
    slot: Slot
    block: RecordRef
    ballots: Annotated[tuple[SignedBallot, ...], Length(1, 4096)]

    def ballot(self, signed: SignedBallot) -> Ballot:
        """Return the ballot as its sender signed it."""
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
