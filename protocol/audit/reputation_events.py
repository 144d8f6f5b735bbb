"""Reputation events: for a record, which members it excludes, gives votes or takes votes from, and why.

A `ReputationSnapshot` from before the record is compared with the `ReputationTable` after it (called
`table` here). Both hold immutable values, so a snapshot copies references only, and an unchanged member
costs one comparison: a swarm of a thousand members takes a fraction of a millisecond.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ...crypto.identity import PeerId
from .audit_sums import AuditSums
from .reputation import ReputationTable

NoVotesReason = Literal["dismissed", "failed", "scores", "halves", "contradicted", "unconfirmed"]
"""Why a member has no votes. "dismissed": an audit failed while it had none; "failed": audits have
failed since it had some (in both cases its updates do not count, either); "scores": its scores are too
low; "halves": one half of each sequence is missing from its updates; "contradicted": re-audits
contradict its audits of others; "unconfirmed": too few members vouch for its work, or none for its
recent work."""

ReputationEventKind = Literal[
    "audit_low",
    "audit_failed",
    "contradicted",
    "excluded",
    "reinstated",
    "scores_low",
    "halves_missing",
    "distrusted",
    "votes_gained",
    "votes_lost",
]
"""What happened to a member. "audit_low": an audit of it has a low score, so members re-audit it;
"audit_failed": re-audits confirm a low score, but its updates still count; "contradicted": re-audits
contradict a low score that it reported; "excluded": its updates no longer count; "reinstated": they
count again; "scores_low": its scores are too low for votes; "halves_missing": one half of each sequence
is missing from its updates; "distrusted": re-audits contradict its audits so often that it may make no
more for now; "votes_gained": it has votes in the new epoch and had none in the last; "votes_lost": the
reverse."""

_UNKNOWN = AuditSums()


@dataclass(frozen=True, slots=True)
class ReputationEvent:
    """Reputation event of one member. `detail` is the audited round if `kind` is about an audit, a
    `NoVotesReason` if it is "excluded" or "votes_lost", otherwise empty."""

    kind: ReputationEventKind
    peer: PeerId
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ReputationSnapshot:
    """Everyone's reputation and votes at one time."""

    sums: Mapping[PeerId, AuditSums]
    earned: Mapping[PeerId, int]
    """Votes earned for the epoch, by absent members as well (`ReputationTable.earned`)."""


def take_snapshot(table: ReputationTable) -> ReputationSnapshot:
    """Return the current reputation and votes."""
    # Votes are a new mapping in each epoch, and never modified.
    return ReputationSnapshot(table.sums(), table.earned)


def why_no_votes(table: ReputationTable, peer: PeerId) -> NoVotesReason | None:
    """Return why a member has no votes, or will have none from the next epoch on; None if it has
    some."""
    sums = table[peer].sums
    if not sums.updates_count:
        return _why_excluded(table, peer)
    if sums.level.accused:
        return "scores"
    if not sums.complete:
        return "halves"
    if sums.own_audits.accused:
        return "contradicted"
    return None if peer in table.votes else "unconfirmed"


def reputation_events(
    before: ReputationSnapshot, table: ReputationTable, round: int
) -> list[ReputationEvent]:
    """Return the events that the record of `round` has caused. `before`: the snapshot from before this
    record; `table`: the state after it."""
    found = [
        ReputationEvent("audit_low", low_audit.peer, str(low_audit.round))
        for low_audit, dispute in table.disputes.items()
        if dispute.since == round
    ]
    for low_audit, ending in table.ended:
        of = str(low_audit.round)
        # An exclusion is an event of its own (`excluded`).
        if ending == "failed" and table.updates_count(low_audit.peer):
            found.append(ReputationEvent("audit_failed", low_audit.peer, of))
        if ending == "contradicted":
            found.append(ReputationEvent("contradicted", low_audit.auditor, of))
    for peer, now in table.sums().items():
        was = before.sums.get(peer, _UNKNOWN)
        if now is not was:
            found += _events_of_sums(peer, was, now, table)
    return found + _events_of_votes(before.earned, table)


def _why_excluded(table: ReputationTable, peer: PeerId) -> NoVotesReason:
    return "dismissed" if table[peer].dismissed else "failed"


def _events_of_sums(
    peer: PeerId, was: AuditSums, now: AuditSums, table: ReputationTable
) -> list[ReputationEvent]:
    found: list[ReputationEvent] = []
    if was.updates_count and not now.updates_count:
        found.append(ReputationEvent("excluded", peer, _why_excluded(table, peer)))
    if now.updates_count and not was.updates_count:
        found.append(ReputationEvent("reinstated", peer))
    if now.level.accused and not was.level.accused:
        found.append(ReputationEvent("scores_low", peer))
    if was.complete and not now.complete:
        found.append(ReputationEvent("halves_missing", peer))
    if now.own_audits.accused and not was.own_audits.accused:
        found.append(ReputationEvent("distrusted", peer))
    return found


def _events_of_votes(before: Mapping[PeerId, int], table: ReputationTable) -> list[ReputationEvent]:
    now = table.earned
    if now is before:
        return []
    gained = [ReputationEvent("votes_gained", peer) for peer in sorted(now.keys() - before.keys())]
    return gained + [
        ReputationEvent("votes_lost", peer, why_no_votes(table, peer) or "unconfirmed")
        for peer in sorted(before.keys() - now.keys())
    ]
