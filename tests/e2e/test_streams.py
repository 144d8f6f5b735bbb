"""A node whose terminal takes nothing: it trains, and leaves politely."""

from __future__ import annotations

from pathlib import Path

import pytest
from distro_node.node.errors import ExitCode
from e2e.support import Place, Swarm, wait_for_round

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.mark.parametrize("streams", ["</dev/null >/dev/full 2>/dev/full", "<&- >&- 2>&-"])
def test_a_node_trains_without_its_standard_streams(tmp_path: Path, streams: str) -> None:
    lost = Place(prefix=("bash", "-c", f'exec "$@" {streams}', "bash"))
    with Swarm(tmp_path / "swarm", places={"founder": lost}) as swarm:
        swarm.create()
        (founder,) = swarm.start("founder")
        wait_for_round([founder], 3)
        left = swarm.run("leave", "leave", "--data-dir", founder.data.root)
        assert left.wait() == ExitCode.OK
        assert founder.program.wait() == ExitCode.OK
        assert founder.program.stderr == ""
