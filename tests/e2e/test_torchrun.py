"""A node with devices on two machines: torch's elastic launcher starts one process on each.

Both machines are this one, with a launcher each; they find each other on loopback.
"""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest
from distro_node.node.errors import ExitCode
from e2e.program import Program, wait_for
from e2e.support import Node, Place, Swarm, check_agreement, wait_for_round
from network.support import free_port

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="several devices in one node need Linux"),
]


def launcher(port: int, *options: str) -> tuple[str, ...]:
    """Return the words of a launcher, before the command."""
    return (
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "test"),
        *("--max-restarts", "3", "--local-addr", "127.0.0.1", *options, "--no-python"),
    )


def second_machine(swarm: Swarm, node: Node) -> Program:
    """Start the same command there, with the same data directory."""
    return swarm.run(
        "second-machine",
        *("join", swarm.link, "--data-dir", node.data.root, "--no-screen", "--threads", "1"),
        *("--device", "cpu", "--metrics-addr", "off", "--dashboard", "off"),
        *("--listen", "/ip4/127.0.0.1/tcp/0"),
    )


def ranks(launchers: list[Program]) -> list[psutil.Process]:
    """Return the trainer's processes below the launchers, without the process that restarts the
    second one."""
    below = [each for program in launchers for each in program.children()]
    words = {each: " ".join(each.cmdline()) for each in below if each.is_running()}
    return [
        each
        for each, said in words.items()
        if "distro_node.node.trainer" in said and ("--tell" in said or is_first(each))
    ]


def is_first(process: psutil.Process) -> bool:
    """Whether it is the node's own trainer."""
    return "--requests" in " ".join(process.cmdline())


# The death of another rank than the node's own: tests/trainer/test_processes.py.
@pytest.mark.parametrize(
    "deaths",
    [(True,), pytest.param((True, False), marks=pytest.mark.soak)],
    ids=["the node's own", "each"],
)
def test_a_cluster_is_one_member(tmp_path: Path, deaths: tuple[bool, ...]) -> None:
    prefix = launcher(free_port())
    places: dict[str, Place] = {name: Place(prefix) for name in ("cluster", "second-machine")}
    with Swarm(tmp_path / "swarm", start_members=2, places=places) as swarm:
        swarm.create()
        founder, cluster = swarm.node("founder"), swarm.node("cluster")
        founder.start()
        launchers = [cluster.start(), second_machine(swarm, cluster)]
        wait_for_round([founder, cluster], 4)
        assert cluster.told().training.trainer.device == "cpu × 2"
        assert len(founder.members()) == 2
        check_agreement([founder, cluster])

        # If any of the trainer's processes dies, it restarts together with the others; the node stays.
        node = cluster.told().node
        for of_the_node in deaths:
            (rank,) = [each for each in ranks(launchers) if is_first(each) == of_the_node]
            rank.kill()
            killed = founder.round
            wait_for(lambda k=killed: cluster.counted(k + 2), "the cluster to contribute again")
        assert cluster.told().node.started == node.started
        assert len(cluster.events("trainer")) == len(deaths)
        check_agreement([founder, cluster])
        assert not founder.events("mismatch")

        # When the node leaves, all of its processes end.
        left = swarm.run("leave", "leave", "--data-dir", cluster.data.root)
        assert left.wait() == ExitCode.OK
        for program in launchers:
            assert program.wait() == ExitCode.OK, program.stderr
