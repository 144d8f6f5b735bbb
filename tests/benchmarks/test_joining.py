"""The benchmark of joining, small: a newcomer arrives whatever happens to the peers it fetches from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from namespaces import available

pytestmark = pytest.mark.slow


@pytest.mark.skipif(not available(), reason="takes root, ip and nft")
def test_a_state_comes_although_one_lies_and_one_freezes(checkout: Path, tmp_path: Path) -> None:
    figures = tmp_path / "join.json"
    subprocess.run(
        [
            *(sys.executable, checkout / "benchmarks" / "network.py", "join"),
            # More chunks than are started before all members have reported their holdings.
            *("--megabytes", "48", "--json", figures),
        ],
        check=True,
        timeout=240,
    )
    found = json.loads(figures.read_text())
    for run in (found["well"], found["faults"]):
        assert run["measured_seconds"] > run["limit_seconds"] > 0
        assert run["download_bytes_max"] > 48_000_000
    # All arrived once, plus the headers.
    assert found["well"]["download_bytes_max"] < 1.15 * 48_000_000
    assert found["faults"]["rejected"]["bad_hash"] >= 1
    assert "bad_hash" not in found["well"]["rejected"]
