"""The benchmark of audits: it resumes after a kill, its output has every key, and its fits are right."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# Private here: `_below`, `_fitted`, `_fails`: the fits, whose results the table shows.

KINDS = {
    "honest": 18.0,
    "honest, bfloat16": 18.0,
    "other data": 4.0,
    "a small batch repeated": 4.0,
    "copies another": 0.0,
    "copies another, a fifth turned": 0.0,
    "random": 0.0,
    "half of the signs turned": 0.0,
}


@pytest.fixture
def benchmark(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    # By its path: the tests of the same subject are in a folder of the same name.
    path = checkout / "benchmarks" / "checks.py"
    spec = importlib.util.spec_from_file_location("benchmark_of_checks", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def call(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., list[tuple[str, str, int]]]:
    """Run the program with fake scores; return the cases that each call measured."""
    measured: list[tuple[str, str, int]] = []

    class Swarm:
        def __init__(self, case: Any, text: Any, heldout: Any) -> None:
            self.case = case

        def run(self, progress: Callable[[str], None]) -> Any:
            case = self.case
            if case.seed == 13:
                raise KeyboardInterrupt
            measured.append((case.size, case.label, case.seed))
            chance = np.random.default_rng(case.seed)
            rows = []
            for number in range(12):
                at = case.first + number * case.stride
                for stream in range(case.members):
                    for kind, mean in KINDS.items() if stream == 0 else [("honest", 18.0)]:
                        scores = mean + (3 if mean else 1) * chance.normal(size=(case.share, 3))
                        scores[:, 2] = 0.8 * scores[:, 1] + chance.normal(size=case.share)
                        rows.append([kind, at, stream, False, scores.round(2).tolist()])
                        again = [(scores[0] + 0.1).round(2).tolist()]
                        rows.append([kind, at, stream, True, again])
            unit = sys.modules["checks_swarm"].Unit
            return unit(
                case={**benchmark.asdict(case), "label": case.label},
                parameters=140_000,
                coefficients=312,
                rows=rows,
                statistics=["plain sum of signs", benchmark.CHOSEN, benchmark.BEGINNING],
                losses=[[0, 5.5], [case.rounds, 3.0]],
                seconds={"gradient": 0.01, "check": 0.005},
            )

    monkeypatch.setattr(benchmark, "Swarm", Swarm)
    monkeypatch.setattr(benchmark, "read_corpus", lambda *_: (None, None))

    def call(*arguments: str) -> list[tuple[str, str, int]]:
        measured.clear()
        work = ("--work", str(tmp_path / "work"), "--json", str(tmp_path / "json"))
        monkeypatch.setattr(sys, "argv", ["checks.py", *work, *arguments])
        benchmark.main()
        return list(measured)

    return call


def test_a_killed_call_goes_on_and_nothing_is_measured_twice(
    call: Callable[..., list[tuple[str, str, int]]], tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        call("--sizes", "0.14M", "--seeds", "0", "13")
    # As a machine that lost its power leaves it.
    with (tmp_path / "work").open("a") as stream:
        stream.write('{"case": {"si')
    assert call("--sizes", "0.14M", "--seeds", "0", "1") == [("0.14M", "usual", 1)]
    assert call("--sizes", "0.14M", "--seeds", "0", "1") == []
    assert call("--sizes", "0.14M", "--variants", "rms") == [("0.14M", "preconditioner rms", 0)]
    assert call("--known") == []


def test_the_document_says_what_was_asked(
    call: Callable[..., list[tuple[str, str, int]]],
    benchmark: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    call("--sizes", "0.14M")
    document = json.loads((tmp_path / "json").read_text())
    assert document["cost_share"] <= 0.03
    assert 0 < document["false_accusation_rate"] < 1e-6
    for name in KINDS:
        if not name.startswith("honest"):
            found = document["opponents"][name]
            assert found["checks_until_found"] == 3
            assert found["found_share"] > 0.98
    (case,) = document["cases"]
    assert case["honest_elsewhere"]["honest, bfloat16"]["found_share"] == 0
    assert case["honest"]["checks"] == 12 * 8 * 4
    assert case["honest"]["deviation"] == pytest.approx(3, rel=0.1)
    assert case["statistics"][benchmark.CHOSEN]["least_d"] > 4
    seldom = document["opponents"]["honest in 90% of rounds, else copies"]
    assert seldom["failed_both"] == pytest.approx(0.1, abs=0.01)
    assert "false accusations a check" in capsys.readouterr().out


def test_tails_are_those_of_the_distributions(benchmark: Any) -> None:
    # From printed tables: one in a hundred, and one in a thousand.
    assert benchmark._below(-2.3263, math.inf) == pytest.approx(0.01, rel=1e-3)
    assert benchmark._below(-3.3649, 5.0) == pytest.approx(0.01, rel=1e-3)
    assert benchmark._below(-4.1437, 10.0) == pytest.approx(0.001, rel=1e-3)
    assert benchmark._below(3.3649, 5.0) == pytest.approx(0.99, rel=1e-4)


def test_heavy_tails_are_found(benchmark: Any) -> None:
    chance = np.random.default_rng(0)
    heavy = 20 + 3 * chance.standard_t(4, (2000, 4))
    fitted = benchmark._fitted(heavy, 10.0)
    assert fitted["t"]["degrees"] in (3.0, 4.0, 5.0)
    assert fitted["t"]["scale"] == pytest.approx(3, rel=0.05)
    assert fitted["t"]["log_likelihood"] > fitted["normal"]["log_likelihood"]
    share = float((heavy < 10).mean())
    assert fitted["t"]["fails_first"] == pytest.approx(share, rel=0.15)
    both = np.mean(
        [benchmark._fails(row, j, 10_000) for row in heavy[:500] for j in range(len(row))]
    )
    assert fitted["t"]["fails"] == pytest.approx(float(both), abs=0.003)
