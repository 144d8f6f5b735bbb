"""The benchmark of stalls: the node's own parts run through all of its stages in a small setting."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_every_stage_is_gone_through(checkout: Path, tmp_path: Path) -> None:
    # In a process of its own: it takes over logging and the garbage collector.
    small = ("--members", "4", "--bytes", "3000", "--rounds", "12")
    file = tmp_path / "stalls.json"
    done = subprocess.run(
        (sys.executable, checkout / "benchmarks" / "stalls.py", *small, "--json", file),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "it took in 35 rounds" in done.stdout
    assert len(json.loads(file.read_text())["stages"]) == 8
