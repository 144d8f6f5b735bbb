"""Certificates: sets of ballots that prove a quorum.

The signers of a certificate of one kind for one slot have a quorum of the votes of the members that
they do not *all* mark as silent. Only members that every signer marks as silent are discounted, so one
honest signer that hears a member keeps it in the count.

Members without votes take no part: their masks neither keep a member in the count nor remove it. But
if the signers mark every member with votes as silent, the remaining members are the *heirs*, and each
counts once. Every member that has not signed such a certificate doubts it (`consensus`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ...crypto.envelope import Verify, verify_detached
from ...crypto.identity import PeerId
from ..wire.encoding import encode
from ..wire.errors import ProtocolError
from ..wire.membership import FaultModel, Membership, Votes, quorum
from ..wire.messages import BallotKind, Certificate, RecordId, SignedBallot

# Distinct masks are few: the common one, and that of a member that has just noticed a change. Only
# ballots made to waste time have many masks; this bounds their cost.
_MAX_FLOORS = 64


def find_quorum(
    ballots: Mapping[PeerId, Iterable[SignedBallot]],
    membership: Membership,
    votes: Votes,
    model: FaultModel,
) -> tuple[SignedBallot, ...] | None:
    """Return the certifying set of `ballots` with the most votes, one ballot of each signer, sorted by
    peer; if there is none, the largest set of heirs; otherwise None."""
    voters = {peer: versions for peer, versions in ballots.items() if votes[peer]}
    found = _largest(voters, membership, votes, model)
    if found is not None or votes.equal:
        return found
    heirs = {
        peer: [signed for signed in versions if disinherits(signed.silent, membership, votes)]
        for peer, versions in ballots.items()
        if not votes[peer]
    }
    return _largest(heirs, membership, membership.one_each, model)


def disinherits(silent: bytes, membership: Membership, votes: Votes) -> bool:
    """Whether a mask marks every member with votes as silent."""
    mask = membership.bits(silent)
    return all(mask & membership.bit(peer) for peer in votes.by_peer)


def weigh(bits: int, membership: Membership, votes: Votes) -> int:
    """Return the votes of the members that a mask marks."""
    # This runs for every ballot; with one vote each a bit count suffices.
    return bits.bit_count() if votes.equal else votes.among(membership.marked(bits))


def _largest(
    ballots: Mapping[PeerId, Iterable[SignedBallot]],
    membership: Membership,
    votes: Votes,
    model: FaultModel,
) -> tuple[SignedBallot, ...] | None:
    """Return the certifying set of these ballots with the most votes.

    A signer's ballots differ in their masks only: it signed all of them, and any may be used. For each
    *floor*, an intersection of masks that occur, all ballots that mark at least these members as silent
    are tried together; every certifying set has such an intersection and is contained in the set tried
    for it.
    """
    signers: list[list[tuple[int, SignedBallot]]] = []
    for _, versions in sorted(ballots.items()):
        masks = [(membership.bits(signed.silent), signed) for signed in versions]
        if masks:
            signers.append(sorted(masks, key=lambda version: _by_size(version[0])))
    distinct = {mask for masks in signers for mask, _ in masks}
    most_silent = max((weigh(mask, membership, votes) for mask in distinct), default=0)
    cast = votes.among(masks[0][1].peer for masks in signers)
    if cast < quorum(model, votes.total - most_silent):
        return None
    best: list[tuple[int, SignedBallot]] = []
    most = 0
    for floor in _floors(mask for masks in signers for mask, _ in masks):
        chosen = [
            next((version for version in masks if version[0] & floor == floor), None)
            for masks in signers
        ]
        found = [version for version in chosen if version is not None]
        weight = votes.among(signed.peer for _, signed in found)
        if weight > most and _certifies(
            [(signed.peer, mask) for mask, signed in found], membership, votes, model
        ):
            best, most = found, weight
    return tuple(signed for _, signed in best) or None


def _floors(masks: Iterable[int]) -> list[int]:
    """Return the empty mask and the intersections of `masks`, the smallest first; about `_MAX_FLOORS`
    at most."""
    floors = {0}
    # The most common masks first: the rare ones may be noise.
    for mask, _ in Counter(masks).most_common():
        floors |= {mask, *(mask & floor for floor in floors)}
        if len(floors) > _MAX_FLOORS:
            break
    return sorted(floors, key=_by_size)


def _by_size(mask: int) -> tuple[int, int]:
    return mask.bit_count(), mask


def _certifies(
    signers: list[tuple[PeerId, int]], membership: Membership, votes: Votes, model: FaultModel
) -> bool:
    if not signers:
        return False
    silent = ~0
    for _, mask in signers:
        silent &= mask
    # A member that signs is not silent, whatever the other masks say.
    for peer, _ in signers:
        silent &= ~membership.bit(peer)
    present = ~silent & (1 << len(membership)) - 1
    counted = weigh(present, membership, votes)
    if not counted:
        # Every member with votes is marked as silent: the heirs count, each once.
        return len(signers) >= quorum(model, present.bit_count())
    if not all(votes[peer] for peer, _ in signers):
        return False
    return votes.among(peer for peer, _ in signers) >= quorum(model, counted)


def silenced(certificate: Certificate, membership: Membership) -> set[PeerId]:
    """Return the members that every signer of a certificate marks as silent."""
    common = ~0
    for signed in certificate.ballots:
        common &= membership.bits(signed.silent)
    return {
        peer
        for peer in set(membership.peers) - {signed.peer for signed in certificate.ballots}
        if common & membership.bit(peer)
    }


def check_certificate(
    certificate: Certificate,
    *,
    kind: BallotKind,
    swarm: bytes,
    round: int,
    parent: RecordId,
    block: RecordId,
    membership: Membership,
    votes: Votes,
    model: FaultModel,
    verify: Verify = verify_detached,
) -> None:
    """Check that `certificate` proves that a quorum cast `kind` for `block` in this round.

    Raises `ProtocolError` with the reason `certificate`, or `invalid` for an impossible mask.
    """
    subject = (certificate.kind, certificate.round, certificate.parent, certificate.block)
    if subject != (kind, round, parent, block):
        raise ProtocolError(
            "certificate", "the certificate is for another record, round or kind of ballot"
        )
    peers = [signed.peer for signed in certificate.ballots]
    if peers != sorted(set(peers)):
        raise ProtocolError("certificate", "signers are not sorted and distinct")
    if any(peer not in membership for peer in peers):
        raise ProtocolError("certificate", "a signer is not a member")
    signers = [(signed.peer, membership.bits(signed.silent)) for signed in certificate.ballots]
    if not _certifies(signers, membership, votes, model):
        raise ProtocolError(
            "certificate", f"{len(signers)} of {len(membership)} members are not a quorum"
        )
    check_signatures(certificate, swarm, verify)


def check_signatures(certificate: Certificate, swarm: bytes, verify: Verify) -> set[PeerId]:
    """Check all signatures of a certificate, without regard to membership. Returns the signers.

    Raises `ProtocolError` with the reason `certificate`.
    """
    # Most signers have the same mask, and so signed the same bytes.
    bodies: dict[bytes, bytes] = {}
    for signed in certificate.ballots:
        if signed.silent not in bodies:
            bodies[signed.silent] = encode(certificate.ballot(signed))
        body = bodies[signed.silent]
        if not verify(certificate.kind, swarm, signed.peer, body, signed.signature):
            raise ProtocolError("certificate", "a signature is not valid")
    return {signed.peer for signed in certificate.ballots}
