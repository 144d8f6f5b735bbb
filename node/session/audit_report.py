"""The state of the audits according to the chain, for the status and the metrics."""

from __future__ import annotations

from dataclasses import asdict

from ...crypto.identity import PeerId, peer_text
from ...protocol.audit.reputation import ReputationTable
from ...protocol.audit.reputation_events import why_no_votes
from ...protocol.chain.audits import AuditLedger
from ...protocol.chain.ledger import Ledger
from ..telemetry.audit_messages import excluded_text
from ..telemetry.audit_status import AuditsStatus, ExcludedMember, OwnAudits
from ..telemetry.counts import Increases


def audits_status(ledger: Ledger, me: PeerId | None) -> AuditsStatus | None:
    """Return what the audits have found up to the current round; None in a swarm without audits.

    `me`: the peer whose own account to include; None to include no one's.
    """
    audits = ledger.find(AuditLedger)
    if audits is None:
        return None
    reputation = audits.reputation
    return AuditsStatus(
        audits=reputation.totals.audits,
        low=reputation.totals.low,
        disputes=len(reputation.disputes),
        votes=sum(reputation.votes.values()),
        voters=len(reputation.votes),
        excluded=tuple(
            ExcludedMember(peer=peer_text(peer), reason=_reason(reputation, peer))
            for peer in _excluded(ledger, reputation)
        ),
        own=None if me is None else _own(reputation, me),
    )


def count_audits(counts: Increases, ledger: Ledger, me: PeerId | None) -> None:
    """Count the audits that the chain has gained since the last call; none in a swarm without audits.
    Call this once when the chain is loaded, which counts none yet, and whenever it has grown."""
    audits = ledger.find(AuditLedger)
    if audits is None:
        return
    reputation = audits.reputation
    own = {} if me is None else {"own": reputation[me].audits_made}
    counts.update({**asdict(reputation.totals), **own})


def _excluded(ledger: Ledger, reputation: ReputationTable) -> list[PeerId]:
    """Return the members whose updates do not count."""
    sums = reputation.sums()
    members = ledger.membership(len(ledger)).peers
    return [peer for peer in members if peer in sums and not sums[peer].updates_count]


def _reason(reputation: ReputationTable, peer: PeerId) -> str:
    own = reputation[peer]
    return excluded_text(own.audited, own.failed)


def _own(reputation: ReputationTable, me: PeerId) -> OwnAudits:
    own = reputation[me]
    return OwnAudits(
        counts=own.sums.updates_count,
        votes=reputation.votes.get(me, 0),
        audited=own.audited,
        low=own.low,
        failed=own.failed,
        audits_made=own.audits_made,
        reason=why_no_votes(reputation, me),
        passes_until_counted=own.sums.passes_until_counted,
    )
