"""Certificates: how ballots become proof.

A certificate of one kind for one slot is a set of ballots such that its signers are a quorum of the
members that they do not *all* call silent. Discounting only whom every signer calls silent means
that one honest signer who hears a member keeps that member in the count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..crypto.envelope import verify_detached
from ..crypto.identity import PeerId
from .errors import ProtocolError
from .membership import FaultModel, Membership, quorum
from .messages import BallotKind, Certificate, RecordId, SignedBallot
from .wire import encode

Verify = Callable[[str, bytes, PeerId, bytes, bytes], bool]
"""(kind, swarm, sender, body, signature) → whether the signature holds."""


def find_quorum(
    ballots: Mapping[PeerId, SignedBallot], membership: Membership, model: FaultModel
) -> tuple[SignedBallot, ...] | None:
    """The largest set among `ballots` (equal but for their masks) that certifies, sorted by peer.

    For each mask that occurs, those signers are tried together who call at least these members
    silent; a set that certifies at all is contained in one of these.
    """
    masks = {peer: membership.bits(signed.silent) for peer, signed in ballots.items()}
    best: tuple[SignedBallot, ...] | None = None
    for floor in {0, *masks.values()}:
        signers = [peer for peer, mask in masks.items() if mask & floor == floor]
        if best is not None and len(signers) <= len(best):
            continue
        if _certifies([(peer, masks[peer]) for peer in signers], membership, model):
            best = tuple(ballots[peer] for peer in sorted(signers))
    return best


def _certifies(
    signers: list[tuple[PeerId, int]], membership: Membership, model: FaultModel
) -> bool:
    if not signers:
        return False
    silent = ~0
    for _, mask in signers:
        silent &= mask
    # A member that signs is not silent, whatever the others heard.
    for peer, _ in signers:
        silent &= ~membership.bit(peer)
    present = len(membership) - silent.bit_count()
    return len(signers) >= quorum(model, present)


def silenced(certificate: Certificate, membership: Membership) -> set[PeerId]:
    """The members that every signer of a checked certificate calls silent."""
    common = ~0
    for signed in certificate.ballots:
        common &= membership.bits(signed.silent)
    return {peer for peer in membership.peers if common & membership.bit(peer)}


def check_certificate(
    certificate: Certificate,
    *,
    kind: BallotKind,
    swarm: bytes,
    round: int,
    parent: RecordId,
    block: RecordId,
    membership: Membership,
    model: FaultModel,
    verify: Verify = verify_detached,
) -> None:
    """Check that `certificate` proves that a quorum cast `kind` for `block` in this round.

    Raises `ProtocolError` with the reason `certificate`.
    """
    subject = (certificate.kind, certificate.round, certificate.parent, certificate.block)
    if subject != (kind, round, parent, block):
        raise ProtocolError("certificate", "the certificate is about something else")
    peers = [signed.peer for signed in certificate.ballots]
    if peers != sorted(set(peers)):
        raise ProtocolError("certificate", "signers are not sorted and distinct")
    if any(peer not in membership for peer in peers):
        raise ProtocolError("certificate", "a signer is no member")
    signers = [(signed.peer, membership.bits(signed.silent)) for signed in certificate.ballots]
    if not _certifies(signers, membership, model):
        raise ProtocolError("certificate", f"{len(signers)} of {len(membership)} are no quorum")
    for signed in certificate.ballots:
        body = encode(certificate.ballot(signed))
        if not verify(kind, swarm, signed.peer, body, signed.signature):
            raise ProtocolError("certificate", "a signature does not hold")
