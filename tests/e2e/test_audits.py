"""Real nodes that audit each other's work: members that do it earn votes, others are found out."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from statistics import median, median_low

import pytest
from distro_node.crypto.identity import peer_from_text
from distro_node.protocol.chain.audits import AuditLedger
from e2e.audited_swarm import IDLE_NODE, TOP_K, audits_of, make_audited
from e2e.program import wait_for
from e2e.support import Place, Swarm, check_agreement

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NAMES = ("founder", "second", "third", "idle")


def test_who_does_not_do_the_work_is_found_out(tmp_path: Path) -> None:
    places = {"idle": Place(prefix=(sys.executable, str(IDLE_NODE)))}
    with Swarm(
        tmp_path / "swarm",
        start_members=4,
        snapshot_interval=8,
        sequences=8,
        top_k=TOP_K,
        places=places,
    ) as swarm:
        make_audited(swarm, round_seconds=1.0)
        for name in NAMES:
            # The held-out loss says nothing here, and takes a fifth of a trainer's time.
            swarm.node(name).start("--evaluate-every", "1000")
        nodes = swarm.start(*NAMES)
        *honest, idle = (peer_from_text(node.peer) for node in nodes)
        second = nodes[1]

        def settled() -> bool:
            """Whether every working member has votes by now, and the idle one has none, or none any
            more: votes from a few audits that scored high last until the epoch ends."""
            work = second.ledger().find(AuditLedger)
            assert work is not None
            return not work.reputation.updates_count(idle) and set(work.reputation.votes) == set(
                honest
            )

        wait_for(
            settled, "the idle one to be found out, and all others, and nobody else, to have votes"
        )
        check_agreement(nodes[:3])
        ledger = second.ledger()
        work = ledger.find(AuditLedger)
        assert work is not None
        assert all(work.reputation.updates_count(peer) for peer in honest)
        scores: dict[bool, list[float]] = {True: [], False: []}
        for _, peer, score in audits_of(ledger):
            scores[peer == idle].append(score)
        # Scores below half of the usual are low; in the first epoch, without a usual score, the
        # bound is lower.
        usual = median(scores[False])
        low = sum(each < usual / 2 for each in scores[False])
        assert low <= len(scores[False]) / 5
        # A few audits find it out, of which one may score high by chance.
        assert median_low(scores[True]) < usual / 2
        again = Counter(
            entry.reauditor for n in range(len(ledger)) for entry in ledger[n].record.reaudits
        )
        # No member audits its own work.
        assert again
        assert again.keys() <= set(honest)
