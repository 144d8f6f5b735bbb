"""The file of a benchmark's finished runs: a kill during a write loses only that run."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Made:
    """The parts of a run that the file needs."""

    way: str
    loss: float


@pytest.fixture
def kept(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    return importlib.import_module("runs")


@pytest.mark.parametrize("cut", [1, 10])
def test_a_line_that_was_cut_off_is_passed_over_and_written_over(
    kept: Any, tmp_path: Path, cut: int
) -> None:
    file = tmp_path / "runs.jsonl"
    first, second, third = Made("first", 1.0), Made("second", 2.0), Made("third", 3.0)
    kept.append_run(file, first)
    kept.append_run(file, second)
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size - cut)
    left = file.read_bytes()
    assert kept.read_runs(file, Made) == [first]
    assert file.read_bytes() == left, "whoever reads leaves the file as it is"
    kept.append_run(file, third)
    assert kept.read_runs(file, Made) == [first, third]


def test_there_need_be_no_file(kept: Any, tmp_path: Path) -> None:
    assert kept.read_runs(tmp_path / "none.jsonl", Made) == []
