"""The state of the audits according to the chain, for the status and the metrics."""

from __future__ import annotations

from dataclasses import asdict

from ...crypto.identity import PeerId, peer_text
from ...protocol.audit.reputation import ReputationTable
from ...protocol.audit.reputation_events import why_no_votes
from ...protocol.chain.ledger import Ledger
from ..telemetry.audit_messages import excluded_text
from ..telemetry.audit_status import AuditsStatus, LeftOut, OwnAudits
from ..telemetry.counts import Increases


def audits_status(ledger: Ledger, me: PeerId | None) -> AuditsStatus | None:
    """Return what the audits have found up to the current round; None in a swarm without audits.

    `me`: the peer whose own account to include; None to include no one's.
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


def count_audits(counts: Increases, ledger: Ledger, me: PeerId | None) -> None:
    """Count the audits that the chain has gained since the last call; none in a swarm without audits.
    Call this once when the chain is loaded, and whenever it has grown."""
    if ledger.audits is None:
        return
    reputation = ledger.audits.reputation
    own = {} if me is None else {"own": reputation[me].audits_made}
    counts.update({**asdict(reputation.totals), **own})


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
