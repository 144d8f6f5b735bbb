"""A newcomer on a slow line in a swarm of short rounds: it succeeds although snapshots are replaced
quickly."""

from __future__ import annotations

from pathlib import Path

import pytest
from distro_node.protocol.wire.blobs import CHUNK_BYTES
from e2e.program import wait_for
from e2e.support import Swarm, check_agreement, wait_for_round

# `make test` has it without processes: tests/content/test_snapshots.py, and on a simulated slow line
# tests/simulation/test_rejoin.py.
pytestmark = [pytest.mark.e2e, pytest.mark.soak]

SNAPSHOT_INTERVAL = 2


def test_a_swarm_with_short_rounds_cannot_outrun_a_newcomer(tmp_path: Path) -> None:
    """Its download takes longer than a snapshot would be kept if it were not being fetched."""
    with Swarm(tmp_path, snapshot_interval=SNAPSHOT_INTERVAL, hidden=512) as swarm:
        swarm.create()
        (founder,) = swarm.start("founder")
        size = 4 * swarm.manifest.elements
        assert size > CHUNK_BYTES
        # Without a snapshot the newcomer would fetch the initial parameters, and then the state of a
        # round, since a fast machine is by then too far ahead for a replay.
        wait_for_round([founder], 3 * SNAPSHOT_INTERVAL)
        newcomer = swarm.node("newcomer")
        newcomer.start("--max-download", "1500kbit")
        wait_for(lambda: newcomer.rounds(), "the newcomer to replay a round")
        # Without that, the snapshot from before its first round would be gone by now.
        assert founder.round - min(newcomer.rounds()) > 3 * SNAPSHOT_INTERVAL
        # One snapshot came over the line, and no part of a second.
        assert newcomer.received()["blob"] < size + CHUNK_BYTES // 4
        began = newcomer.round
        wait_for(lambda: newcomer.counted(began), "the newcomer's first contribution")
        check_agreement([founder, newcomer])
