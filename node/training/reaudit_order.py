"""The order of re-audits: which open dispute a member audits next, chosen so that all members agree.

A dispute is settled when re-audits with enough votes agree, and is dropped when its rounds are over.
If audits take longer than rounds, and each member took the dispute that was newest when it became
free, all would take different ones, and none would ever be settled. So the choice follows from the
chain. It is not enforced: a member that chooses otherwise merely helps less.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...crypto.hashing import content_id
from ...crypto.identity import PeerId
from ...protocol.audit.disputes import FINDINGS, OPEN_ROUNDS, outcome
from ...protocol.audit.reputation import Audit, ReputationTable
from ...protocol.wire.encoding import encode


def next_reaudit(
    waiting: Iterable[Audit], reputation: ReputationTable, me: PeerId, now: int, rounds_taken: int
) -> Audit | None:
    """Return the dispute that `me` audits next; None if no dispute in `waiting` expects its re-audit and
    can still be settled.

    `now` is the round of the next record, `rounds_taken` the number of rounds that a recent re-audit
    took.
    """
    useful = [
        low_audit
        for low_audit in waiting
        if reputation.may_reaudit(me, low_audit) and _can_be_settled(reputation, low_audit)
    ]
    return min(
        useful, key=lambda low_audit: _order(reputation, low_audit, now, rounds_taken), default=None
    )


def _can_be_settled(reputation: ReputationTable, low_audit: Audit) -> bool:
    """Whether the dispute would be settled if all re-auditors still missing agreed with each other."""
    dispute = reputation.disputes[low_audit]
    missing = reputation.pending_reauditors(low_audit)
    return dispute.jury is not None and any(
        outcome(dispute.jury, {**dispute.reaudits, **dict.fromkeys(missing, found)}, low_audit.peer)
        != "open"
        for found in FINDINGS
    )


def _order(
    reputation: ReputationTable, low_audit: Audit, now: int, rounds_taken: int
) -> tuple[bool, bool, int, bytes]:
    dispute = reputation.disputes[low_audit]
    # Disputes that end before a re-audit would be done come last, and before them those about members
    # whose updates do not count anyway. The others are sorted by their number of re-audits: those with
    # most are nearest to a settlement and come first. Among equals the hash
    # decides: the smallest hash of all open disputes seldom changes while a member is still busy, so
    # fast and slow members choose the same one. The hash leaves out the score, which the first auditor
    # may choose.
    late = now + rounds_taken >= dispute.since + OPEN_ROUNDS
    name = content_id(encode([low_audit.round, low_audit.auditor, low_audit.peer]))
    is_out = not reputation.updates_count(low_audit.peer)
    return late, is_out, -len(dispute.reaudits), name
