"""Reading of the variables of torch's elastic launcher, and which launches are refused."""

from __future__ import annotations

import subprocess
import sys

import pytest
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.settings.values import parse_torchrun_device
from distro_node.node.training.torchrun import NO_STORE, NODE_ENDED, RankAssignment, launch_of

SAID = {
    "TORCHELASTIC_RUN_ID": "run",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "192.0.2.1",
    "MASTER_PORT": "29400",
}


def test_a_process_knows_which_one_it_is() -> None:
    assert launch_of(SAID) == RankAssignment(5, 8, 1, 4, "192.0.2.1", 29400, "run/2")
    assert launch_of({}) is None
    # A single process is an ordinary node.
    assert launch_of({**SAID, "RANK": "0", "WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"RANK": "fifth"}, "fifth"),
        ({"MASTER_PORT": ""}, "missing or invalid"),
        ({"TORCHELASTIC_USE_AGENT_STORE": "False"}, "no store"),
    ],
)
def test_a_launch_that_cannot_work_is_refused(changes: dict[str, str], problem: str) -> None:
    with pytest.raises(UserError, match=problem) as refused:
        launch_of({**SAID, **changes})
    assert refused.value.code == ExitCode.USAGE
    without = dict(SAID)
    del without["WORLD_SIZE"]
    with pytest.raises(UserError, match="WORLD_SIZE"):
        launch_of(without)


FULL = """
import tempfile
def full(**_):
    raise OSError(28, "No space left on device")
tempfile.TemporaryDirectory = full
from distro_node.node.trainer.ranks.elastic_rank import main
main()
"""


def test_a_rank_without_room_for_temporary_files_reports_it() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FULL], capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == NO_STORE
    (line,) = ended.stderr.splitlines()
    assert line.endswith("no space for temporary files: [Errno 28] No space left on device")


MACHINE = """
import subprocess, sys
from distro_node.node.trainer.ranks import elastic_rank
from distro_node.node.training.torchrun import NODE_ENDED
made = []
elastic_rank.make_device_node = lambda: made.append(1)
def ran(*_, **__):
    assert made
    return subprocess.CompletedProcess([], NODE_ENDED)
subprocess.run = ran
elastic_rank.main()
"""


def test_a_rank_makes_the_file_that_cuda_needs_before_its_process_starts() -> None:
    """The machine of another rank has no node that would have made it."""
    ended = subprocess.run([sys.executable, "-c", MACHINE], timeout=100, check=False)
    assert ended.returncode == NODE_ENDED


def test_the_launcher_sets_which_devices() -> None:
    assert [parse_torchrun_device(name) for name in ("auto", "cpu", "cuda")]
    for name in ("all", "cuda:1", "cuda:0,cuda:1"):
        with pytest.raises(UserError, match="but torchrun assigns") as refused:
            parse_torchrun_device(name)
        assert refused.value.code == ExitCode.NO_DEVICE
