"""Conditions under which the next record may list a member as departed."""

from __future__ import annotations

from ...crypto.envelope import Verify
from ...crypto.identity import PeerId
from ..wire.encoding import encode
from ..wire.errors import ProtocolError
from ..wire.membership import LEAVE_WINDOW, Membership
from ..wire.messages import DepartureEntry, Leave, Record
from .chain_index import ChainView, VoteSource


def allows_leave(chain: ChainView, leave_round: int, peer: PeerId) -> bool:
    """Whether the next record may hold a leave that `peer` announced for round `leave_round`.

    The leave must be recent and not withdrawn: an update of `peer` in a later round withdraws it.
    """
    now = len(chain)
    if not leave_is_current(leave_round, peer, now, chain.membership(now)):
        return False
    since = map(chain.record, range(leave_round + 1, now))
    return all(record.update_by(peer) is None for record in since)


def leave_is_current(leave_round: int, peer: PeerId, round: int, membership: Membership) -> bool:
    """Whether a leave that `peer` announced for round `leave_round` may be put into the record of
    `round`."""
    since = membership.since.get(peer)
    return (
        since is not None
        and since < leave_round
        and round - LEAVE_WINDOW <= leave_round <= round + 1
    )


def check_departures(record: Record, chain: ChainView, verify: Verify) -> None:
    """Check the departures in the next record. Raises `ProtocolError` (`record`)."""
    for departure in record.departed:
        _check_departure(departure, record, chain, verify)


def _check_departure(
    departure: DepartureEntry, record: Record, chain: ChainView, verify: Verify
) -> None:
    peer, swarm = departure.peer, chain.manifest.swarm
    if peer not in chain.membership(record.round):
        raise ProtocolError("record", "a departure of a non-member")
    if departure.reason != "left":
        if departure.signature or departure.round:
            raise ProtocolError("record", "a departure for silence with a signature or a round")
        if departure.reason == "dismissed" and not chain.index(VoteSource).dismisses(peer):
            raise ProtocolError("record", "a member is dismissed whose work has not failed audits")
        return
    if not allows_leave(chain, departure.round, peer):
        raise ProtocolError("record", "a leave that is too old, or of a future round")
    if not verify("leave", swarm, peer, encode(Leave(departure.round)), departure.signature):
        raise ProtocolError("record", "a leave that its member did not sign")
