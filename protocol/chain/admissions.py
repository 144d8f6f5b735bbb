"""Conditions under which the next record may admit a peer."""

from __future__ import annotations

from ...crypto.envelope import verify_detached
from ...crypto.identity import PeerId
from ..wire.manifest import Manifest
from ..wire.membership import REQUEST_WINDOW, Membership
from ..wire.messages import TICKET_KIND, JoinRequest
from .audits import AuditLedger, dismissed
from .certificates import Verify


def admission_problem(
    peer: PeerId,
    request: JoinRequest,
    round: int,
    manifest: Manifest,
    membership: Membership,
    verify: Verify = verify_detached,
    work: AuditLedger | None = None,
) -> str | None:
    """Return why the record of `round` may not admit `peer`; None if it may."""
    if peer in membership:
        return "already a member"
    if peer in membership.expelled:
        return "the peer was expelled"
    if dismissed(peer, work):
        return "the peer was dismissed: audits found that it had not done its work"
    if not round - REQUEST_WINDOW <= request.round <= round:
        return "the request is too old, or of a future round"
    if request.round <= membership.gone.get(peer, -1):
        return "the request dates from before the peer's departure"
    if not invited(peer, request, manifest, verify):
        return "the invitation's ticket is not valid"
    return None


def invited(
    peer: PeerId, request: JoinRequest, manifest: Manifest, verify: Verify = verify_detached
) -> bool:
    """Whether the manifest's admission policy allows `peer`; without a ticket issuer it allows every
    peer."""
    issuer = manifest.admission.issuer
    return issuer is None or verify(TICKET_KIND, manifest.swarm, issuer, peer, request.ticket)
