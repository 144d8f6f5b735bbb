"""Nodes whose terminals take nothing: they train, and leave politely."""

from __future__ import annotations

from pathlib import Path

import pytest
from distro_node.node.errors import ExitCode
from e2e.support import Place, Swarm, wait_for_round

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


STREAMS = {"founder": "</dev/null >/dev/full 2>/dev/full", "second": "<&- >&- 2>&-"}


def test_nodes_train_without_their_standard_streams(tmp_path: Path) -> None:
    places = {
        name: Place(prefix=("bash", "-c", f'exec "$@" {lost}', "bash"))
        for name, lost in STREAMS.items()
    }
    with Swarm(tmp_path / "swarm", start_members=2, places=places) as swarm:
        swarm.create()
        nodes = swarm.start(*STREAMS)
        wait_for_round(nodes, 3)
        for node in nodes:
            left = swarm.run("leave", "leave", "--data-dir", node.data.root)
            assert left.wait() == ExitCode.OK
            assert node.program.wait() == ExitCode.OK
            assert node.program.stderr == ""
