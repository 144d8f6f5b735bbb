"""A member on a slow line that was away is back within a minute and the time that its line takes for the
state."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from e2e.program import wait_for
from e2e.support import Place, Swarm, check_agreement
from namespaces import Town, available

# `make test` has the same in virtual time: tests/simulation/test_returns.py.
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.soak,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not available(), reason="takes root, ip and nft"),
]

NAMES = ("founder", "second", "third", "slow")
LINE_BYTES = 34_000
"""Bytes a second of the slow member's line, each way."""
AWAY_ROUNDS = 20
"""Four snapshots: nobody has the updates any more that the member lacks."""
BACK_SECONDS = 60.0


def test_a_member_on_a_slow_line_is_soon_back(tmp_path: Path) -> None:
    """It took 290 s, in which the line was idle or brought what was thrown away."""
    with Town(["bootstrap", *NAMES]) as town:
        places = {name: Place(host.prefix, host.address) for name, host in town.hosts.items()}
        town.shape("slow", up=8 * LINE_BYTES, down=8 * LINE_BYTES)
        with Swarm(
            tmp_path / "swarm", hidden=160, min_seconds=2.0, top_k=2, places=places
        ) as swarm:
            swarm.create()
            founder, *_, slow = swarm.start(*NAMES)
            wait_for(lambda: slow.counted(), "the slow member's update to count", limit=240.0)
            slow.program.kill()
            left = founder.round
            wait_for(
                lambda: founder.round >= left + AWAY_ROUNDS, "the others to go on", limit=240.0
            )
            _, before = town.line_bytes("slow")
            began, reached = time.monotonic(), founder.round
            slow.start()
            wait_for(
                lambda: slow.counted(reached), "the slow member's update to count", limit=600.0
            )
            seconds = time.monotonic() - began
            _, after = town.line_bytes("slow")
            state = 4 * swarm.manifest.elements
            print(
                f"back after {seconds:.0f} s with {(after - before) / 1e6:.2f} MB received, "
                f"{(after - before) / LINE_BYTES:.0f} s of its line; "
                f"the state alone: {state / 1e6:.2f} MB, {state / LINE_BYTES:.0f} s"
            )
            assert seconds <= BACK_SECONDS + state / LINE_BYTES
            check_agreement([founder, slow])
