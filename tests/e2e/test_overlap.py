"""Real nodes that compute a round ahead: equal parameters, learning, and a death in between."""

from __future__ import annotations

from pathlib import Path

import pytest
from distro_node.crypto.identity import peer_from_text
from e2e.program import wait_for
from e2e.support import Swarm, check_agreement, wait_for_round

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_a_swarm_trains_a_round_ahead(tmp_path: Path) -> None:
    with Swarm(tmp_path / "swarm", start_members=3, overlap=True) as swarm:
        swarm.create()
        assert swarm.manifest.rounds.overlap
        founder, _, third = nodes = swarm.start("founder", "second", "third")
        wait_for_round(nodes, 8)

        # Killed with one update announced and the next one in progress, and back with its key.
        peer = peer_from_text(third.peer)
        third.program.kill()
        killed = founder.round
        third.start()
        wait_for(lambda: third.counted(killed), "the restarted node to contribute again")

        losses = wait_for(
            lambda: [line["heldout"] for line in founder.history() if "heldout" in line][4:],
            "five measurements of the held-out loss",
        )
        first = next(line["heldout"] for line in founder.history() if "heldout" in line)
        assert losses[-1] < first - 0.5
        last = check_agreement(nodes)
        ledger = founder.ledger()
        everybody = [r for r in range(last) if len(ledger[r].record.updates) == 3]
        assert len(everybody) > 5
        # A member that is admitted again has a share from its second round on.
        for round_ in range(killed, last):
            if peer in [entry.peer for entry in ledger[round_].record.admitted]:
                assert peer not in [e.peer for e in ledger[round_ + 1].record.updates]
        for node in nodes:
            assert not node.events("mismatch")
        assert founder.told().training.trainer.idle is not None
