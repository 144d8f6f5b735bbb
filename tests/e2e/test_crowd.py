"""Sixteen real nodes started at once, in any order, and their bootstrap peer after them: one swarm."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from e2e.program import wait_for
from e2e.support import Swarm, check_agreement

# Loading sixteen trainers takes some ten minutes of CPU time.
pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(4000)]

SEED = 16
COUNT = 16
PATIENCE_SECONDS = 1500.0


def test_sixteen_processes_are_one_swarm_however_late_the_bootstrap_peer(tmp_path: Path) -> None:
    names = ["founder", *(f"node{number}" for number in range(1, COUNT))]
    random.Random(SEED).shuffle(names)
    with Swarm(tmp_path, lease_seconds=120.0) as swarm:
        swarm.create()
        swarm.bootstrap.kill()
        began = time.monotonic()
        nodes = [swarm.node(name) for name in names]
        for node in nodes:
            node.start("--wait")
        # The founder starts alone; nodes that know no peer keep searching.
        newcomers = [node for node in nodes if node.name != "founder"]
        for node in newcomers:
            wait_for(
                lambda node=node: "still searching" in node.program.stderr,
                f"{node.name} to find nobody",
                limit=PATIENCE_SECONDS,
            )
        swarm.restore_bootstrap()
        late = time.monotonic()
        wait_for(
            lambda: all(node.state == "training" for node in nodes),
            "all to train",
            limit=PATIENCE_SECONDS,
            describe=lambda: {node.name: node.state for node in nodes},
        )
        trained = time.monotonic()
        founder = swarm.node("founder")
        wait_for(
            lambda: len(founder.members()) == COUNT,
            "one swarm of all",
            limit=PATIENCE_SECONDS,
            describe=lambda: len(founder.members()),
        )
        last = check_agreement(nodes, 2)
        # One chain: the same records everywhere.
        assert len({node.ledger()[last - 1].record.id for node in nodes}) == 1
        print(
            f"{COUNT} processes: the bootstrap peer came {late - began:.0f} s after them; "
            f"all train {trained - late:.0f} s later, one chain up to round {last} "
            f"after {time.monotonic() - late:.0f} s"
        )
