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


class CheckedMetrics(Maker):
    """The audit metrics, in the registry of the node's other metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.looks = self._family(
            Counter,
            "looks_recorded_total",
            "Looks of members at the work of others that records hold, passed or low.",
            "result",
            Result,
        )
        self.second_looks = self._single(
            Counter,
            "second_looks_recorded_total",
            "Looks at work that somebody found low before, likewise.",
        )
        self.own_looks = self._single(
            Counter,
            "own_looks_recorded_total",
            "Looks of this node at the work of others, likewise.",
        )
        self.disputes_open = self._unknown(
            "disputes_open",
            "Low looks that others look at again; no number: work is not checked.",
        )
        self.disputes_ended = self._family(
            Counter,
            "disputes_ended_total",
            "Such disputes that ended: the check has failed, the first look was contradicted, or "
            "nothing was settled in time.",
            "ending",
            DisputeOutcomeLabel,
        )
        self.votes = self._family(
            Gauge,
            "votes",
            "Votes of this node and of the swarm in the current round, earned by checked work; no "
            "number: work is not checked.",
            "scope",
            Voters,
        )
        for scope in get_args(Voters):
            self.votes[scope].set(math.nan)
        self.voters = self._unknown(
            "members_with_votes", "Members with votes; no number: work is not checked."
        )
        self.left_out = self._unknown(
            "members_left_out",
            "Members whose updates do not count, since checks of their work failed; no number: work "
            "is not checked.",
        )
