"""The entry point of the network benchmarks: its messages to people before anything runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def run(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    script = checkout / "benchmarks" / "network.py"
    return subprocess.run(
        [sys.executable, str(script), *words], capture_output=True, text=True, check=False
    )


def test_help_names_every_scenario(checkout: Path) -> None:
    shown = run(checkout, "--help")
    assert shown.returncode == 0
    for path in (checkout / "benchmarks" / "scenarios").glob("[a-z]*.py"):
        if "\ndef measure(" in path.read_text():
            assert f"\n  {path.stem.replace('_', '-')} " in shown.stdout


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["nowhere"], "there is no scenario 'nowhere'"),
        (["report", "--members", "one"], "'one' is not a number"),
        (["report", "--members", "100000"], "'100000' is not a number from 2"),
        ([], "SCENARIO"),
    ],
)
def test_mistakes_are_one_line(checkout: Path, words: list[str], problem: str) -> None:
    ended = run(checkout, *words)
    assert ended.returncode == 2
    assert problem in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert not ended.stdout
