"""A real node on another device than the CPU, in one swarm with a node on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e.support import Swarm, check_agreement, wait_for_round
from trainer.test_vulkan import vulkan_is_here

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(not vulkan_is_here(), reason="needs torchvulkan and a Vulkan driver"),
]


def test_a_node_on_vulkan_and_one_on_the_cpu_agree_in_every_round(tmp_path: Path) -> None:
    with Swarm(tmp_path / "swarm", start_members=2) as swarm:
        swarm.create()
        on_cpu, on_vulkan = swarm.node("founder"), swarm.node("vulkan")
        on_cpu.start("--device", "cpu")
        on_vulkan.start("--device", "vulkan:0")
        wait_for_round([on_cpu, on_vulkan], 8)
        check_agreement([on_cpu, on_vulkan], rounds=5)
        assert on_vulkan.told().training.trainer.device == "vulkan"
        # Its own updates count, too: both learn from what the other's device computed.
        assert on_vulkan.counted()
        assert not on_vulkan.events("mismatch")
        assert not on_cpu.events("mismatch")
