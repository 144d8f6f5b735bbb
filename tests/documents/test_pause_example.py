"""The worked example of `--pause-when`, run against a local server: bounds, times, faults."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from web_server import WebServer

SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "pause_by_price.py"


def tariff(price: float) -> object:
    """Return a tariff whose element for the current hour has this price."""
    hour = datetime.now(UTC).replace(microsecond=0)
    return {
        "results": [
            {
                "value": value,
                "valid_from": (hour + timedelta(hours=start)).isoformat(),
                "valid_to": (hour + timedelta(hours=start + 2)).isoformat(),
            }
            for value, start in ((99.0, 1), (price, -1), (98.0, -3))
        ]
    }


class Source:
    """A server with one JSON answer, and the script that asks it."""

    def __init__(self, state: Path) -> None:
        self.body = b""
        self.state = state
        self.server = WebServer(lambda _: (200, {}, lambda write: write(self.body)))

    def ask(self, answer: object, path: str, pause: float, resume: float) -> int:
        """Return the script's exit code."""
        self.body = json.dumps(answer).encode()
        command = [sys.executable, SCRIPT, self.server.url, path, str(pause), str(resume)]
        return subprocess.run([*command, self.state], timeout=60).returncode


def test_it_pauses_above_one_bound_and_resumes_below_the_other(tmp_path: Path) -> None:
    source = Source(tmp_path / "paused")
    with source.server.serving():
        codes = [
            source.ask(tariff(price), "results.now.value", 30, 25) for price in (28, 31, 27, 24, 28)
        ]
        assert codes == [1, 0, 0, 1, 1]
        codes = [
            source.ask({"watts": [watts]}, "watts.0", 400, 700) for watts in (500, 300, 500, 800)
        ]
        assert codes == [1, 0, 0, 1]


@pytest.mark.parametrize(
    ("answer", "path"),
    [({"a": "much"}, "a"), ({}, "a"), ([], "now"), (tariff(1), "results.7.value"), (None, "a")],
)
def test_without_a_number_it_says_neither(tmp_path: Path, answer: object, path: str) -> None:
    source = Source(tmp_path / "paused")
    with source.server.serving():
        assert source.ask(answer, path, 30, 25) == 2
