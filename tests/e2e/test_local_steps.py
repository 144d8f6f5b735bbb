"""Real nodes that take four steps of their own a round: equal parameters, learning, and a pause."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e.program import wait_for
from e2e.support import Swarm, check_agreement, wait_for_round

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_two_members_with_local_steps_agree(tmp_path: Path) -> None:
    with Swarm(tmp_path / "swarm", start_members=2, tables="local_steps = 4\n") as swarm:
        swarm.create()
        assert swarm.manifest.rounds.local_steps == 4
        founder, _ = nodes = swarm.start("founder", "second")
        wait_for_round(nodes, 12)
        losses = wait_for(
            lambda: [line["heldout"] for line in founder.history() if "heldout" in line][1:],
            "a second measurement of the held-out loss",
        )
        first = next(line["heldout"] for line in founder.history() if "heldout" in line)
        assert losses[-1] < first
        last = check_agreement(nodes)
        ledger = founder.ledger()
        assert sum(len(ledger[r].record.updates) == 2 for r in range(last)) > 5
        for node in nodes:
            assert not node.events("mismatch")
