"""Prometheus metrics of the audits. In a swarm without audits the counters stay at zero, and the gauges
have no number."""

from __future__ import annotations

import math
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge

from .families import Maker

Result = Literal["passed", "low", "other"]
# As in protocol/audit/counts.py.
DisputeOutcomeLabel = Literal["failed", "contradicted", "dropped", "other"]
Voters = Literal["own", "swarm", "other"]


class AuditMetrics(Maker):
    """The audit metrics, in the registry of the node's other metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.audits = self._family(
            Counter,
            "audits_recorded_total",
            "Audits in records: `passed`, or `low` (too low a score).",
            "result",
            Result,
        )
        self.reaudits = self._single(
            Counter,
            "reaudits_recorded_total",
            "Re-audits in records: audits of work with a low audit before.",
        )
        self.own_audits = self._single(
            Counter,
            "own_audits_recorded_total",
            "Audits by this node in records.",
        )
        self.disputes_open = self._unknown(
            "disputes_open",
            "Open disputes: low audits that other members re-audit; no number: the swarm does "
            "not audit work.",
        )
        self.disputes_ended = self._family(
            Counter,
            "disputes_ended_total",
            "Disputes that ended, by outcome: the work failed the audit, re-audits contradicted "
            "the first audit, or the dispute was dropped unsettled after its time.",
            "ending",
            DisputeOutcomeLabel,
        )
        self.votes = self._family(
            Gauge,
            "votes",
            "Votes of this node and of the swarm in the current round, earned by audited work; "
            "no number: the swarm does not audit work.",
            "scope",
            Voters,
        )
        for scope in get_args(Voters):
            self.votes[scope].set(math.nan)
        self.voters = self._unknown(
            "members_with_votes", "Members with votes; no number: the swarm does not audit work."
        )
        self.excluded = self._unknown(
            "members_excluded",
            "Members whose updates do not count because audits of their work failed; no number: "
            "the swarm does not audit work.",
        )
