"""Liars with a third of the votes against audit verdicts, for some hundred rounds (`verdicts.py`)."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def benchmark(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    return importlib.import_module("verdicts")


@pytest.mark.parametrize(("members", "rounds"), [(8, 600), (16, 600), (40, 60)])
def test_no_honest_member_is_out_of_the_step(benchmark: Any, members: int, rounds: int) -> None:
    """When records determined the lottery and the first five re-audits settled a dispute, five liars
    of sixteen with a leader that varied its record had excluded nine of eleven after 576 rounds."""
    found = benchmark.attacked(members, 7, rounds)
    assert found["rounds"] == rounds
    assert found["honest_out"] == 0
    assert found["votes_most"] < 0.4
    if rounds > 100:
        assert found["disputes"]["contradicted"] > 10
        assert found["slots_passed"] > 10


def test_an_idle_liar_is_found_whose_friends_stand_up_for_it(benchmark: Any) -> None:
    found = benchmark.attacked(16, 7, 400, 1)
    assert len(found["idle_out_after"]) == 1
    assert found["honest_out"] == 0


@pytest.mark.parametrize("share", [1, 32])
def test_an_idle_member_is_found_whatever_capacity_it_states(benchmark: Any, share: int) -> None:
    assert benchmark.alone(share, 7, newcomer=True, members=8) < 40
    assert benchmark.alone(share, 7, newcomer=False, members=8) < 200


@pytest.mark.parametrize(
    ("members", "liars", "first"), [(4, 1, 4), (5, 1, 5), (7, 2, 7), (7, 2, 3), (13, 1, 2)]
)
def test_liars_do_not_have_most_votes_of_a_swarm_that_begins(
    benchmark: Any, members: int, liars: int, first: int
) -> None:
    """When votes were those of the first to be audited, liars had most of them in a sixth of the swarms
    where all are there from the beginning, and in all others, and put honest members out of the step."""
    runs = [benchmark.founded(members, liars, first, 1, seed) for seed in range(10)]
    assert all(run["votes_most"] < 0.5 for run in runs)
    assert all(run["all_voted_after"] is not None for run in runs)


def test_no_lie_that_nobody_re_audits_puts_an_honest_member_out(benchmark: Any) -> None:
    """Five of sixteen that reported high scores had all others out after 31 rounds at the soonest; five
    that omitted one of two sequences passed a third of the votes."""
    for name in ("high scores, 16 members", "high scores, uneven shares"):
        found = benchmark.lied_to(benchmark.LIES[name], 3, 500)
        assert (found["honest_out"], found["honest_without_votes"]) == (0, 0)
        assert found["votes_most"] < 0.4
    found = benchmark.lied_to(benchmark.LIES["one sequence of two omitted"], 3, 500)
    assert (found["honest_out"], found["honest_distrusted"]) == (0, 0)
    assert found["votes_most"] < 0.36


def test_what_the_benchmark_writes(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written = tmp_path / "verdicts.json"
    argv = ["--rounds", "30", "--seeds", "1", "--swarms", "1", "--members", "8"]
    monkeypatch.setattr("sys.argv", ["verdicts.py", *argv, "--json", str(written)])
    benchmark.main()
    found = json.loads(written.read_text(encoding="utf-8"))
    assert [(row["members"], row["idle"]) for row in found["rows"]] == [(8, 0), (8, 1)]
    assert len(found["shares"]) == 12
