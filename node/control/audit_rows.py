"""Status rows of the audits."""

from __future__ import annotations

from collections.abc import Iterator

from ..telemetry.audit_messages import audits_text, excluded_list, own_audits_text, votes_text
from ..telemetry.status import SwarmStatus
from .status_row import StatusRow


def own_audit_rows(swarm: SwarmStatus | None) -> Iterator[StatusRow]:
    """Yield the rows on a member's own work; none in a swarm without audits."""
    audits = swarm and swarm.audits
    if audits is None or audits.own is None:
        return
    own = audits.own
    text = own_audits_text(own)
    reason = text.meaning + (f"; {text.remedy}" if text.remedy else "")
    yield StatusRow(
        "your audits", audits_text(own.audited, own.low), "of your work, by other members"
    )
    if not own.counts:
        yield StatusRow("your updates", "do not count", reason)
    yield StatusRow(
        "your votes",
        votes_text(own, audits),
        reason if own.counts else "none while your updates do not count",
    )


def audit_rows(swarm: SwarmStatus | None) -> Iterator[StatusRow]:
    """Yield the rows on the work of all members; none in a swarm without audits."""
    audits = swarm and swarm.audits
    if audits is None:
        return
    open_ = f", {audits.disputes:,} in dispute" if audits.disputes else ""
    value = audits_text(audits.audits, audits.low) + open_
    yield StatusRow("audits", value, "of all members' work, since the swarm was founded")
    yield StatusRow(
        "voters",
        f"{audits.voters:,} with {audits.votes:,} votes",
        "votes are earned by work that other members have audited",
    )
    if audits.excluded:
        yield StatusRow("excluded", excluded_list(audits), "members whose updates do not count")
