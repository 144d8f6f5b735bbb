"""Prometheus metrics of the audits: rows for the table in `metrics`. In a swarm without audits the
counters stay at zero, and the gauges have no number."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

from .audit_status import AuditsStatus
from .counts import NodeReading
from .families import MetricRow, values_of

Result = Literal["passed", "low", "other"]
# Outcomes of a dispute, as in protocol/audit/counts.py.
DisputeOutcomeLabel = Literal["failed", "spared", "contradicted", "dropped", "other"]
Voters = Literal["own", "swarm", "other"]


def _recorded(*totals: str) -> Callable[[NodeReading], Mapping[str, float]]:
    return lambda at: {total: at.counts.audits.sums[total] for total in totals}


def _gauge(number: Callable[[AuditsStatus], int]) -> Callable[[NodeReading], int | None]:
    def read(at: NodeReading) -> int | None:
        audits = at.status.swarm and at.status.swarm.audits
        return None if audits is None else number(audits)

    return read


def _votes(at: NodeReading) -> Mapping[str, int]:
    audits = at.status.swarm and at.status.swarm.audits
    if audits is None:
        return {}
    own = {} if audits.own is None else {"own": audits.own.votes}
    return {**own, "swarm": audits.votes}


AUDIT_METRICS: tuple[MetricRow[NodeReading], ...] = (
    MetricRow(
        "counter",
        "audits_recorded_total",
        "Audits in records: `passed`, or `low` (too low a score).",
        _recorded("passed", "low"),
        values_of("result", Result),
    ),
    MetricRow(
        "counter",
        "reaudits_recorded_total",
        "Re-audits in records: audits of work with a low audit before.",
        lambda at: at.counts.audits.sums["reaudits"],
    ),
    MetricRow(
        "counter",
        "own_audits_recorded_total",
        "Audits by this node in records.",
        lambda at: at.counts.audits.sums["own"],
    ),
    MetricRow(
        "gauge",
        "disputes_open",
        "Open disputes: low audits that other members re-audit; no number: the swarm does "
        "not audit work.",
        _gauge(lambda audits: audits.disputes),
    ),
    MetricRow(
        "counter",
        "disputes_ended_total",
        "Disputes that ended, by outcome: the work failed the audit, one sequence of it was low, "
        "re-audits contradicted the first audit, or the dispute was dropped unsettled after its time.",
        _recorded("failed", "spared", "contradicted", "dropped"),
        values_of("ending", DisputeOutcomeLabel),
    ),
    MetricRow(
        "gauge",
        "votes",
        "Votes of this node and of the swarm in the current round, earned by audited work; "
        "no number: the swarm does not audit work.",
        _votes,
        values_of("scope", Voters, math.nan),
    ),
    MetricRow(
        "gauge",
        "members_with_votes",
        "Members with votes; no number: the swarm does not audit work.",
        _gauge(lambda audits: audits.voters),
    ),
    MetricRow(
        "gauge",
        "members_excluded",
        "Members whose updates do not count because audits of their work failed; no number: "
        "the swarm does not audit work.",
        _gauge(lambda audits: len(audits.excluded)),
    ),
)
