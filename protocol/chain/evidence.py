"""Evidence of equivocation: two ballots of one slot of which an honest member signs at most one, or two
announcements of one round.

A member that receives both keeps them, gossips them, and puts them into a record when it leads; the
record expels the signer's identity permanently. The chain alone suffices to check the proof. Only
messages with the same parent contradict each other: after a partition a member may change chains, and
has then honestly signed on both.

A member must not make two announcements for a round: some members would receive one and some the other,
so that they could agree on neither, and a leader that can choose between two of its own can choose its
record's id. Two signatures on the same content are two announcements as well: Ed25519 signatures are
deterministic (RFC 8032), so an honest member makes only one.
"""

from __future__ import annotations

from ...crypto.envelope import Verify
from ...crypto.identity import PeerId
from ..wire.encoding import encode
from ..wire.errors import ProtocolError
from ..wire.membership import REQUEST_WINDOW
from ..wire.messages import BallotHalf, BallotKind, Evidence, Record, RecordId, SignedAnnouncement
from .chain_index import ChainView

EVIDENCE_WINDOW = REQUEST_WINDOW
"""Rounds for which evidence may still be put into a record. It only bounds how long members keep
evidence that no leader has recorded yet."""

RULED_OUT: dict[BallotKind, frozenset[BallotKind]] = {
    "vote": frozenset({"vote", "skip", "finalize"}),
    "skip": frozenset({"skip", "finalize"}),
    "finalize": frozenset({"finalize", "skip"}),
}
"""By kind of ballot, the kinds that exclude it: a member that cast one of these in a slot must not cast
it."""


def contradict(first: BallotHalf, second: BallotHalf) -> bool:
    """Whether no honest member signs both in one slot, in any order.

    A vote before a skip is allowed, and so is the same ballot with another mask.
    """
    if first.kind == second.kind:
        return first.block != second.block
    return first.kind in RULED_OUT[second.kind] and second.kind in RULED_OUT[first.kind]


def accuse(
    peer: PeerId, round: int, parent: RecordId, slot: int, one: BallotHalf, other: BallotHalf
) -> Evidence:
    """Return the proof that `peer` cast contradicting ballots in a slot."""
    first, second = sorted((one, other), key=_order)
    return Evidence(peer, round, parent, slot, first, second)


def accuse_of_announcements(
    peer: PeerId, one: SignedAnnouncement, other: SignedAnnouncement
) -> Evidence:
    """Return the proof that `peer` made two announcements in a round."""
    round_, parent = one.announcement.round, one.announcement.parent
    first, second = sorted((one, other), key=encode)
    return Evidence(peer, round_, parent, 1, None, None, (first, second))


def check_evidence(evidence: Evidence, chain: ChainView, verify: Verify) -> None:
    """Check that the next record may expel a member by this evidence, which proves that the member
    contradicted itself on this chain. Raises `ProtocolError` (`evidence`)."""
    round_, now, swarm = evidence.round, len(chain), chain.manifest.swarm
    if not now - EVIDENCE_WINDOW <= round_ <= now:
        raise ProtocolError("evidence", "it is too old, or of a future round")
    if evidence.peer in chain.membership(now).expelled:
        raise ProtocolError("evidence", "the accused is expelled already")
    if evidence.parent != chain.parent(round_):
        raise ProtocolError("evidence", "messages of another chain")
    if evidence.peer not in chain.membership(round_):
        raise ProtocolError("evidence", "the accused was not a member")
    if evidence.announcements:
        _check_announcements(evidence, swarm, verify)
        return
    first, second = evidence.first, evidence.second
    if first is None or second is None:
        raise ProtocolError("evidence", "it holds no messages")
    if not contradict(first, second) or _order(first) > _order(second):
        raise ProtocolError("evidence", "ballots that do not contradict each other")
    for testimony in (first, second):
        body = encode(evidence.ballot(testimony))
        if not verify(testimony.kind, swarm, evidence.peer, body, testimony.signature):
            raise ProtocolError("evidence", "a signature is not valid")


def check_expulsions(record: Record, chain: ChainView, verify: Verify) -> None:
    """Check the evidence in the next record. Raises `ProtocolError` (`record`)."""
    named = {entry.peer for entry in (*record.departed, *record.admitted)}
    for evidence in record.evidence:
        if evidence.peer in named:
            raise ProtocolError(
                "record", "an expelled member is listed as departed or admitted too"
            )
        try:
            check_evidence(evidence, chain, verify)
        except ProtocolError as error:
            raise ProtocolError("record", f"an expulsion that is not allowed: {error}") from None


def _check_announcements(evidence: Evidence, swarm: bytes, verify: Verify) -> None:
    fields = (evidence.slot, evidence.first, evidence.second, len(evidence.announcements))
    if fields != (1, None, None, 2):
        raise ProtocolError("evidence", "it does not consist of exactly two announcements")
    if not encode(evidence.announcements[0]) < encode(evidence.announcements[1]):
        raise ProtocolError("evidence", "announcements that do not contradict each other")
    for announced in evidence.announcements:
        place = announced.announcement.round, announced.announcement.parent
        if place != (evidence.round, evidence.parent):
            raise ProtocolError("evidence", "announcements of another round")
        body = encode(announced.announcement)
        if not verify("announcement", swarm, evidence.peer, body, announced.signature):
            raise ProtocolError("evidence", "a signature is not valid")


def _order(testimony: BallotHalf) -> tuple[BallotKind, RecordId]:
    return testimony.kind, testimony.block
