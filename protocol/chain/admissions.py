"""Conditions under which the next record may admit a peer."""

from __future__ import annotations

from ...crypto.envelope import Verify, verify_detached
from ...crypto.identity import PeerId
from ..wire.encoding import encode
from ..wire.errors import ProtocolError
from ..wire.manifest import Manifest
from ..wire.membership import REQUEST_WINDOW, Membership
from ..wire.messages import TICKET_KIND, JoinRequest, Record
from .chain_index import ChainView, VoteSource


def admission_problem(
    peer: PeerId,
    request: JoinRequest,
    round: int,
    manifest: Manifest,
    membership: Membership,
    verify: Verify = verify_detached,
    *,
    dismissed: bool = False,
) -> str | None:
    """Return why the record of `round` may not admit `peer`; None if it may. `dismissed`: whether audits
    found that the peer had not done its work."""
    if peer in membership:
        return "already a member"
    if peer in membership.expelled:
        return "the peer was expelled"
    if dismissed:
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


def check_admissions(record: Record, chain: ChainView, verify: Verify) -> None:
    """Check the admissions in the next record, and the number of members after it. Raises
    `ProtocolError` (`record`)."""
    manifest, membership = chain.manifest, chain.membership(len(chain))
    expelled = sum(evidence.peer in membership for evidence in record.evidence)
    remaining = len(membership) - len(record.departed) - expelled
    if record.admitted and remaining + len(record.admitted) > manifest.admission.max_members:
        raise ProtocolError("record", "more members than the manifest allows")
    if record.round == 0 and remaining + len(record.admitted) < manifest.rounds.start_members:
        raise ProtocolError("record", "fewer members than training needs to begin")
    if remaining + len(record.admitted) < 1:
        raise ProtocolError("record", "a record that leaves no members")
    for admission in record.admitted:
        peer, request = admission.peer, admission.request
        problem = admission_problem(
            *(peer, request, record.round, manifest, membership, verify),
            dismissed=chain.index(VoteSource).dismisses(peer),
        )
        body = encode(request)
        if problem is None and not verify("join", manifest.swarm, peer, body, admission.signature):
            problem = "the request's signature is not valid"
        if problem is not None:
            raise ProtocolError("record", f"an admission that is not allowed: {problem}")
