"""The list of remaining runs is what a sweep would still do."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

SETTINGS = {"workers": 8, "sequences": 2, "steps": 400}


@pytest.fixture
def left(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    return importlib.import_module("left")


def run_of(left: Any, way: str, rate: float, seed: int, loss: float, seconds: float) -> Any:
    return left.Tried(
        way=way,
        rate=rate,
        seed=seed,
        loss=loss,
        curve=[],
        bytes_a_round=1.0,
        reduction=1.0,
        top_k=None,
        settings=SETTINGS,
        seconds=seconds,
        parameters=1000,
    )


def test_a_way_is_done_with_a_rate_between_others_and_three_seeds(left: Any) -> None:
    runs = [
        *(run_of(left, "done", rate, 0, loss, 60) for rate, loss in ((1, 3.0), (2, 2.0), (4, 2.5))),
        *(run_of(left, "done", 2, seed, 2.0, 60) for seed in (1, 2, 3)),
    ]
    found = left.left_of("local-steps", ["done"], runs)
    assert (found.script, found.sequences, found.rounds) == ("local_steps.py", 16, 400)
    assert (found.ways, found.run, found.found, found.seeds) == (1, 1, 1, 1)
    assert (found.hours_run, found.hours_left) == (0.1, 0)


def test_edges_and_seeds_and_ways_that_nobody_ran_are_left(left: Any) -> None:
    runs = [
        # Nothing was tried below the best, and two seeds are left.
        run_of(left, "edge", 2, 0, 2.0, 100),
        run_of(left, "edge", 4, 0, 2.5, 100),
        run_of(left, "edge", 2, 1, 2.0, 100),
        # One rate does not bracket the best on either side.
        run_of(left, "one", 2, 0, 2.0, 500),
        # A seed of a worse rate does not count.
        run_of(left, "one", 1, 1, 2.0, 500),
    ]
    found = left.left_of("frontier", ["edge", "one", "never"], runs)
    assert (found.ways, found.run, found.found, found.seeds) == (3, 2, 0, 0)
    seconds = (1 + 2) * 100 + (2 + 3) * 500 + (3 + 3) * 260
    assert found.hours_left == pytest.approx(seconds / 3600)


def test_all_that_is_kept_is_read(left: Any) -> None:
    """Every script has runs of its own there, and none of a variant that it never had."""
    settings = list(left.everything())
    assert {each.script for each in settings} == {
        "frontier.py",
        "growth.py",
        "ladder.py",
        "local_steps.py",
    }
    assert all(0 < each.run <= each.ways for each in settings)
    assert all(each.found <= each.run and each.seeds <= each.run for each in settings)
