"""Exchanges of updates over shaped lines, in short; `benchmarks/network.py` measures them at length."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from namespaces import available

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not available(), reason="network namespaces take root, ip, tc and nft"),
]

MEMBERS = 4


def measure(checkout: Path, scenario: str, folder: Path, *options: str) -> dict[str, Any]:
    file = folder / "figures.json"
    script = str(checkout / "benchmarks" / "network.py")
    words = ("--members", str(MEMBERS), "--update-bytes", "300000", "--json", str(file))
    command = [sys.executable, script, scenario, *words, *options]
    subprocess.run(command, check=True, timeout=200)
    return json.loads(file.read_text())


def test_with_a_relay_an_update_goes_up_once(checkout: Path, tmp_path: Path) -> None:
    figures = measure(checkout, "report", tmp_path)
    size = figures["update_bytes"]
    assert figures["update_bytes_received_max"] == pytest.approx((MEMBERS - 1) * size, rel=0.01)
    # Announcements, pings and gossip's control messages come on top; another update does not.
    assert size < figures["payload_sent_max"] < 1.5 * size
    assert size < figures["upload_bytes_max"] < 2 * size


# In `make test` a relay that dies leaves them without one, below.
@pytest.mark.soak
def test_without_one_everybody_gets_everything(checkout: Path, tmp_path: Path) -> None:
    figures = measure(checkout, "report", tmp_path, "--relays", "0")
    size = figures["update_bytes"]
    # Their totals sent and received are equal; how much each one sent is chance.
    assert figures["update_bytes_received_max"] >= (MEMBERS - 1) * size
    assert figures["payload_sent_max"] > 1.5 * size


def test_a_relay_that_is_killed_midway_keeps_nobody_from_the_rest(
    checkout: Path, tmp_path: Path
) -> None:
    figures = measure(checkout, "report", tmp_path, "--relay-dies")
    size = figures["update_bytes"]
    assert figures["update_bytes_received_max"] >= (MEMBERS - 1) * size
    assert figures["relay_processor_seconds"] == []
