"""A node notices by itself that its parameters are wrong, and loads the right ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from distro_node.node.storage.swarm_store import LocalSnapshot, _encode_snapshots
from e2e.program import wait_for
from e2e.support import Swarm, check_agreement, wait_for_round

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SNAPSHOT_INTERVAL = 10


def test_a_node_with_wrong_parameters_loads_the_right_ones(tmp_path: Path) -> None:
    """The faulty member is needed, too, so without it nothing could be decided."""
    # While one is away the other waits for it, for as long as the lease.
    with Swarm(
        tmp_path, start_members=2, snapshot_interval=SNAPSHOT_INTERVAL, lease_seconds=600
    ) as swarm:
        swarm.create()
        nodes = swarm.start("founder", "second")
        wait_for_round(nodes, SNAPSHOT_INTERVAL + 2)
        second = nodes[1]
        # Some rounds after a snapshot was certified and before the next one is.
        wait_for(lambda: second.round % SNAPSHOT_INTERVAL in (3, 4, 5), "the middle of an interval")
        second.program.kill()
        height = len(second.ledger())
        # The initial parameters replace the newest ones.
        wrong = LocalSnapshot(height - 1, swarm.manifest.initial.hex(), 4 * swarm.manifest.elements)
        (second.directory.root / "snapshots.json").write_bytes(_encode_snapshots([wrong]))
        second.start()
        mine = wait_for(
            lambda: second.events("mismatch", second.peer), "the mismatch to be noticed"
        )
        assert mine[0].round == height
        assert second.events("resync")
        wait_for(lambda: second.counted(height), "the node to contribute again")
        check_agreement(nodes)
