"""The state of the audits according to the chain, for the status and for Prometheus."""

from __future__ import annotations

from prometheus_client import Counter

from ...crypto.identity import PeerId, peer_text
from ...protocol.audit.reputation import ReputationTable
from ...protocol.audit.reputation_events import why_no_votes
from ...protocol.chain.ledger import Ledger
from ..telemetry.audit_messages import excluded_text
from ..telemetry.audit_metrics import AuditMetrics
from ..telemetry.audit_status import AuditsStatus, LeftOut, OwnAudits


def audits_status(ledger: Ledger, me: PeerId | None) -> AuditsStatus | None:
    """Return what the audits have found up to the current round; None in a swarm without audits.

    `me`: the peer whose own account to include; None: no one's.
    """
    if ledger.audits is None:
        return None
    accounts = ledger.audits.reputation
    return AuditsStatus(
        audits=accounts.totals.audits,
        low=accounts.totals.low,
        disputes=len(accounts.disputes),
        votes=sum(accounts.votes.values()),
        voters=len(accounts.votes),
        excluded=tuple(
            LeftOut(peer=peer_text(peer), reason=_why(accounts, peer))
            for peer in _left_out(ledger, accounts)
        ),
        own=None if me is None else _own(accounts, me),
    )


class AuditMetricsUpdater:
    """Keeps the audit metrics up to date. Counts from before its first update, so from before this node
    started, are left out."""

    def __init__(self, metrics: AuditMetrics, me: PeerId | None) -> None:
        self._metrics = metrics
        self._me = me
        self._seen: dict[Counter, int] = {}

    def update(self, ledger: Ledger) -> None:
        """Bring the metrics up to this chain; leave them unchanged in a swarm without audits."""
        if ledger.audits is None:
            return
        accounts, metrics = ledger.audits.reputation, self._metrics
        tally = accounts.totals
        self._rise(metrics.audits["passed"], tally.passed)
        self._rise(metrics.audits["low"], tally.low)
        self._rise(metrics.reaudits, tally.reaudits)
        self._rise(metrics.disputes_ended["failed"], tally.failed)
        self._rise(metrics.disputes_ended["contradicted"], tally.contradicted)
        self._rise(metrics.disputes_ended["dropped"], tally.dropped)
        metrics.disputes_open.set(len(accounts.disputes))
        metrics.votes["swarm"].set(sum(accounts.votes.values()))
        metrics.voters.set(len(accounts.votes))
        metrics.excluded.set(len(_left_out(ledger, accounts)))
        if self._me is not None:
            metrics.votes["own"].set(accounts.votes.get(self._me, 0))
            self._rise(metrics.own_audits, accounts[self._me].audits_made)

    def _rise(self, counter: Counter, total: int) -> None:
        # The total may fall: after a change of chain, or when an account was dropped.
        counter.inc(max(0, total - self._seen.get(counter, total)))
        self._seen[counter] = total


def _left_out(ledger: Ledger, accounts: ReputationTable) -> list[PeerId]:
    standings = accounts.sums()
    members = ledger.membership(len(ledger)).peers
    return [peer for peer in members if peer in standings and not standings[peer].counts]


def _why(accounts: ReputationTable, peer: PeerId) -> str:
    account = accounts[peer]
    return excluded_text(account.audited, account.failed)


def _own(accounts: ReputationTable, me: PeerId) -> OwnAudits:
    account = accounts[me]
    return OwnAudits(
        counts=account.sums.counts,
        votes=accounts.votes.get(me, 0),
        audited=account.audited,
        low=account.low,
        failed=account.failed,
        audits_made=account.audits_made,
        reason=why_no_votes(accounts, me),
        passes_until_counted=account.sums.passes_until_counted,
    )
