"""A real node on another device than the CPU, in one swarm with a node on the CPU.

The twins, whose devices err, show that equal fingerprints are not a matter of course.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from distro_node.node.errors import ExitCode
from e2e.support import Node, Place, Swarm, check_agreement, wait_for_round
from trainer.faulty_trainer import FAULTS
from trainer.test_second_device import vulkan_is_here

# `make test` has it without nodes: tests/trainer/test_second_device.py, and tests/test_effect_runner.py
# for parameters that differ three times in a row.
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.soak,
    pytest.mark.skipif(not vulkan_is_here(), reason="needs torchvulkan and a Vulkan driver"),
]

FAULTY_DEVICE = str(Path(__file__).with_name("faulty_device.py"))


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    places = {fault: Place(prefix=(sys.executable, FAULTY_DEVICE, fault)) for fault in FAULTS}
    decay = "\n[optimizer]\nweight_decay = 0.1"
    with Swarm(tmp_path_factory.mktemp("devices"), start_members=2, places=places) as swarm:
        file = swarm.root / "swarm.toml"
        file.write_text(file.read_text().replace("\n[optimizer]", decay))
        swarm.create()
        swarm.node("founder").start("--device", "cpu")
        yield swarm


def started(swarm: Swarm, name: str) -> Node:
    node = swarm.node(name)
    node.start("--device", "vulkan:0")
    return node


def test_a_device_that_rounds_twice_as_once_never_takes_part(swarm: Swarm) -> None:
    fused = started(swarm, "fused")
    fused.program.refused_with(
        ExitCode.NO_DEVICE, "does not compute exactly", "parameters after a sign step"
    )
    assert fused.round == -1


def test_a_node_on_vulkan_and_one_on_the_cpu_agree_in_every_round(swarm: Swarm) -> None:
    on_cpu, on_vulkan = swarm.node("founder"), started(swarm, "vulkan")
    wait_for_round([on_cpu, on_vulkan], 5)
    check_agreement([on_cpu, on_vulkan], rounds=3)
    assert on_vulkan.told().training.trainer.device == "vulkan"
    # Each has counted what the other's device computed.
    assert on_cpu.counts(on_vulkan.peer)
    assert on_vulkan.counts(on_cpu.peer)
    assert not on_vulkan.events("mismatch")
    assert not on_cpu.events("mismatch")


def test_a_device_that_errs_later_is_reported_and_ends_its_node(swarm: Swarm) -> None:
    founder, worn = swarm.node("founder"), swarm.node("worn")
    worn.start("--device", "vulkan:0").refused_with(
        ExitCode.NO_DEVICE,
        "differed from the swarm's 3 times in a row",
        "vulkan or its memory computes",
    )
    assert (
        "nodes have different parameters: our parameters differ from the swarm's"
        in worn.program.stderr
    )
    # The first test would have seen it: it looks at these fingerprints.
    right, wrong = founder.rounds(), worn.rounds()
    assert any(wrong[r]["fingerprint"] != right[r]["fingerprint"] for r in wrong.keys() & right)
    # The others go on without it.
    wait_for_round([founder], founder.round + 3)
