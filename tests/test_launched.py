"""What torch's elastic launcher says of a process, and which of it cannot be taken part in."""

from __future__ import annotations

import pytest
from distro_node.node.errors import ExitCode, UserError
from distro_node.node.launched import Launch, launch_of
from distro_node.node.settings import parse_launched_device

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
    assert launch_of(SAID) == Launch(5, 8, 1, 4, "192.0.2.1", 29400, "run/2")
    assert launch_of({}) is None
    # One process alone is a node like any other.
    assert launch_of({**SAID, "RANK": "0", "WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"RANK": "fifth"}, "fifth"),
        ({"MASTER_PORT": ""}, "something strange"),
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


def test_the_launcher_says_which_devices() -> None:
    assert [parse_launched_device(name) for name in ("auto", "cpu", "cuda")]
    for name in ("all", "cuda:1", "cuda:0,cuda:1"):
        with pytest.raises(UserError, match="so does torchrun") as refused:
            parse_launched_device(name)
        assert refused.value.code == ExitCode.NO_DEVICE
