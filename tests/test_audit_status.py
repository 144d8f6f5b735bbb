"""The chain's state of audits appears unchanged in status and metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from distro_node.crypto.identity import PeerId, peer_text
from distro_node.node.session.audit_report import audits_status, count_audits
from distro_node.node.telemetry.counts import Increases, NodeCounts, NodeReading
from distro_node.protocol.audit.reputation import Audit, Reaudit, RecordedWork, ReputationTable
from distro_node.protocol.chain.audits import AuditLedger
from distro_node.protocol.wire.manifest import AuditsSpec
from scraping import UNBORN, sample
from simulation.chain import Chain
from simulation.keys import identity
from statuses import SWARM

FOUNDER, ANN, BEN, LIAR = (identity(number).peer for number in range(4))
SHARE, GOOD, LOW = 4, 15_000, 500


@pytest.fixture
def chain() -> Chain:
    """Return a chain of four members, all present and none audited yet."""
    return Chain(4, audits=AuditsSpec())


def accounts_of(chain: Chain) -> ReputationTable:
    return chain.ledger.index(AuditLedger).reputation


def audit(chain: Chain, auditor: PeerId, peer: PeerId, round_: int, score: int) -> Audit:
    """Close a record with this audit, and every member's work."""
    accounts, members = accounts_of(chain), chain.membership.peers
    first = Audit(auditor, peer, round_ - 1, SHARE, score)
    accounts.close(RecordedWork(round_, dict.fromkeys(members, SHARE), (first,)), members)
    return first


def turn_away(chain: Chain) -> None:
    """Let the founder find the liar's work low, twice."""
    first = audit(chain, FOUNDER, LIAR, 4, LOW)
    again = Reaudit(FOUNDER, first, low=True)
    for round_ in range(5, 34):
        told = (again,) if round_ == 10 else ()
        accounts_of(chain).close(RecordedWork(round_, {}, (), told), chain.membership.peers)


def votes_of(chain: Chain) -> Mapping[PeerId, int]:
    """Return the votes of the next round, by member."""
    work = chain.ledger.find(AuditLedger)
    assert work is not None
    return work.votes(chain.round)


def test_without_audits_there_is_no_report() -> None:
    chain, counts = Chain(2), Increases()
    assert audits_status(chain.ledger, FOUNDER) is None
    count_audits(counts, chain.ledger, FOUNDER)
    reading = reading_of(chain, counts)
    assert math.isnan(sample(reading, "votes", scope="own"))
    assert math.isnan(sample(reading, "members_excluded"))
    assert sample(reading, "audits_recorded_total", result="passed") == 0


def test_the_status_shows_how_a_member_stands(chain: Chain) -> None:
    audit(chain, FOUNDER, ANN, 2, GOOD)
    audit(chain, FOUNDER, BEN, 3, GOOD)
    turn_away(chain)
    status = audits_status(chain.ledger, LIAR)
    assert status is not None
    assert (status.audits, status.low, status.disputes) == (3, 1, 0)
    votes = votes_of(chain)
    assert (status.voters, status.votes) == (len(votes), sum(votes.values()))
    (left_out,) = status.excluded
    assert left_out.peer == peer_text(LIAR)
    assert left_out.reason == "1 of 1 audit of its work failed"
    own = status.own
    assert own is not None
    assert (own.counts, own.reason, own.votes) == (False, "dismissed", 0)
    assert (own.audited, own.low, own.failed) == (1, 1, 1)
    assert own.passes_until_counted > 0
    founder = audits_status(chain.ledger, FOUNDER)
    assert founder is not None
    assert founder.own is not None
    assert (founder.own.audits_made, founder.own.votes, founder.own.reason) == (
        3,
        votes[FOUNDER],
        None,
    )
    assert founder.own.passes_until_counted == 0


def test_a_newcomer_is_not_vouched_for_and_an_observer_has_no_reputation(chain: Chain) -> None:
    status = audits_status(chain.ledger, BEN)
    assert status is not None
    assert status.own is not None
    assert (status.own.counts, status.own.reason) == (True, "unconfirmed")
    observing = audits_status(chain.ledger, None)
    assert observing is not None
    assert observing.own is None


def reading_of(chain: Chain, counts: Increases) -> NodeReading:
    swarm = replace(SWARM, audits=audits_status(chain.ledger, FOUNDER))
    return NodeReading(status=replace(UNBORN, swarm=swarm), counts=NodeCounts(audits=counts))


def test_metrics_count_what_is_recorded_from_the_first_audit_on(chain: Chain) -> None:
    counts = Increases()
    audit(chain, FOUNDER, ANN, 2, GOOD)
    count_audits(counts, chain.ledger, FOUNDER)
    # It happened before this node started.
    assert sample(reading_of(chain, counts), "audits_recorded_total", result="passed") == 0
    audit(chain, FOUNDER, BEN, 3, GOOD)
    turn_away(chain)
    for _ in range(2):
        count_audits(counts, chain.ledger, FOUNDER)
        reading = reading_of(chain, counts)
        assert sample(reading, "audits_recorded_total", result="passed") == 1
        assert sample(reading, "audits_recorded_total", result="low") == 1
        assert sample(reading, "reaudits_recorded_total") == 1
        assert sample(reading, "own_audits_recorded_total") == 2
        assert sample(reading, "disputes_ended_total", ending="failed") == 1
        assert sample(reading, "disputes_open") == 0
        votes = votes_of(chain)
        assert sample(reading, "votes", scope="own") == votes[FOUNDER]
        assert sample(reading, "votes", scope="swarm") == sum(votes.values())
        assert sample(reading, "members_with_votes") == len(votes)
        assert sample(reading, "members_excluded") == 1


def test_a_counter_never_falls_when_another_chain_is_followed(chain: Chain) -> None:
    counts = Increases()
    count_audits(counts, chain.ledger, FOUNDER)
    audit(chain, FOUNDER, ANN, 2, GOOD)
    count_audits(counts, chain.ledger, FOUNDER)
    other = Chain(4, audits=AuditsSpec())
    count_audits(counts, other.ledger, FOUNDER)
    assert sample(reading_of(other, counts), "audits_recorded_total", result="passed") == 1
    audit(other, FOUNDER, BEN, 2, GOOD)
    count_audits(counts, other.ledger, FOUNDER)
    assert sample(reading_of(other, counts), "audits_recorded_total", result="passed") == 2
