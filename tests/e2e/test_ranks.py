"""A node with several devices in a swarm: one member, whichever of its processes dies."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest
from e2e.program import wait_for
from e2e.support import Swarm, check_agreement, wait_for_round

# `make test` has a node of two devices in `test_torchrun`, and the death of a rank in
# tests/trainer/test_processes.py.
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.soak,
    pytest.mark.skipif(sys.platform != "linux", reason="several devices in one node need Linux"),
]


@pytest.mark.usefixtures("cold_trainers")
def test_two_devices_are_one_member_and_survive_a_death(tmp_path: Path) -> None:
    with Swarm(tmp_path / "swarm", start_members=2) as swarm:
        swarm.create()
        founder, several = swarm.node("founder"), swarm.node("several")
        founder.start()
        several.start("--device", "cpu,cpu")
        nodes = [founder, several]
        wait_for_round(nodes, 5)
        assert several.told().training.trainer.device == "cpu × 2"

        node = psutil.Process(several.program.pid)
        # The node's child is its trainer, whose child is the other rank.
        (other,) = [each for each in node.children(recursive=True) if each.ppid() != node.pid]
        other.kill()
        killed = founder.round
        wait_for(lambda: several.counted(killed + 1), "the restarted trainer to contribute again")
        assert several.running
        (event,) = several.events("trainer")
        assert "its rank 1, on cpu, was ended by signal 9" in event.text
        check_agreement(nodes)
        for each in nodes:
            assert not each.events("mismatch")
