"""The order of re-audits: which open dispute a member audits next, chosen so that all members agree.

A dispute is settled when re-audits with enough votes agree, and is dropped when its rounds are over.
Where audits take longer than rounds, and each member took the dispute that is newest *to itself*,
all would take different ones, and none would ever be settled. So the choice follows from the chain.
It is not enforced: a member that chooses otherwise helps less.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...crypto.hashing import content_id
from ...crypto.identity import PeerId
from ...protocol.audit.disputes import OPEN, outcome
from ...protocol.audit.reputation import Audit, ReputationTable
from ...protocol.wire.encoding import encode


def next_reaudit(
    waiting: Iterable[Audit], accounts: ReputationTable, me: PeerId, now: int, takes: int
) -> Audit | None:
    """Return the dispute that `me` audits next; None if none waits for it that can still be settled.

    `now` is the round of the next record, `takes` the number of rounds that a recent audit took.
    """
    useful = [
        first
        for first in waiting
        if accounts.may_reaudit(me, first) and _can_be_settled(accounts, first)
    ]
    return min(useful, key=lambda first: _order(accounts, first, now, takes), default=None)


def _can_be_settled(accounts: ReputationTable, first: Audit) -> bool:
    """Whether the dispute would be settled if all missing auditors agreed."""
    dispute = accounts.disputes[first]
    missing = accounts.pending_reauditors(first)
    return dispute.jury is not None and any(
        outcome(dispute.jury, {**dispute.reaudits, **dict.fromkeys(missing, low)}, first.peer)
        != "open"
        for low in (True, False)
    )


def _order(
    accounts: ReputationTable, first: Audit, now: int, takes: int
) -> tuple[bool, int, bytes]:
    dispute = accounts.disputes[first]
    # Last come disputes that end before an audit is done; first come those with most re-audits,
    # which are nearest to a settlement. Among the rest the hash decides: the smallest hash of all
    # open disputes seldom changes while a member is still busy, so fast and slow members choose the
    # same one. The hash leaves out the score, which its author may choose.
    late = now + takes >= dispute.since + OPEN
    name = content_id(encode([first.round, first.auditor, first.peer]))
    return late, -len(dispute.reaudits), name
