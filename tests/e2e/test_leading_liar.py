"""Four real nodes, one of which names only its own update whenever it leads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from distro_node.crypto.identity import peer_from_text
from e2e.support import Place, Swarm, check_agreement, wait_for_round

# `make test` has the same liar in a simulation: tests/simulation/test_leading_liars.py.
pytestmark = [pytest.mark.e2e, pytest.mark.soak]

CENSORING_LEADER = Path(__file__).with_name("censoring_leader.py")
ROUNDS = 40


def test_a_leader_that_names_its_own_update_alone_makes_no_step_alone(tmp_path: Path) -> None:
    """Before the fix, it wrote a quarter of all records, and the shares of the others sank to a
    thousandth."""
    liar_runs = Place(prefix=(sys.executable, str(CENSORING_LEADER)))
    with Swarm(tmp_path / "swarm", start_members=4, places={"liar": liar_runs}) as swarm:
        swarm.create()
        nodes = swarm.start("founder", "second", "third", "liar")
        honest, liar = nodes[:3], peer_from_text(nodes[3].peer)
        wait_for_round(nodes, ROUNDS)
        check_agreement(nodes)
        ledger = nodes[0].ledger()
        records = [ledger[number].record for number in range(4, len(ledger))]
        assert not any([entry.peer for entry in record.updates] == [liar] for record in records)
        # It is reported, and the liar's slots are skipped; after two of them in a row it is passed over.
        assert any(node.events("incomplete") for node in honest)
        assert any(record.slot > 1 for record in records)
        assert any(liar in ledger.leaders(n).passed_over for n in range(4, len(ledger)))
        weights = ledger.assignments.shares(len(ledger)).weights
        shares = [weights[peer_from_text(node.peer)].value for node in honest]
        # Shares follow measured speed, which differed by a factor of fifteen on a busy machine.
        assert min(shares) > weights[liar].value / 100
