"""The benchmark of votes: crowds without work get none, and its output has every key."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def benchmark(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    return importlib.import_module("votes")


def test_a_tenth_of_the_work_has_a_tenth_of_the_votes(benchmark: Any) -> None:
    found = benchmark.attack("the work of one in each", 500, 1)
    assert 0.05 < found["votes_last"] < 0.13
    assert found["honest_accused"] == 0
    assert found["half_of_the_honest_vote_after"] < 300


def test_a_crowd_that_does_nothing_has_no_votes(benchmark: Any) -> None:
    found = benchmark.attack("all do nothing", 300, 2)
    assert found["votes_most"] < 0.01
    assert found["found"] > 100


def test_where_the_door_is_free_a_crowd_keeps_the_honest_out(benchmark: Any) -> None:
    assert (
        benchmark.attack("all do nothing, and the door is free", 300, 3)[
            "half_of_the_honest_vote_after"
        ]
        is None
    )


def test_what_it_writes(benchmark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written = tmp_path / "votes.json"
    arguments = ["--rounds", "210", "--checks", "500", "--seeds", "2", "--json", str(written)]
    monkeypatch.setattr(sys, "argv", ["votes.py", *arguments, "--attacks", "nobody"])
    benchmark.main()
    figures = json.loads(written.read_text(encoding="utf-8"))
    assert figures["honest_alone"]["checks"] >= 500
    assert len(figures["attacks"]["nobody"]["seeds"]) == 2
    monkeypatch.setattr(sys, "argv", ["votes.py", "--rounds", "200"])
    with pytest.raises(SystemExit):
        benchmark.main()
