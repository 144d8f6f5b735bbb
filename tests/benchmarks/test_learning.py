"""The learning benchmark: a killed sweep resumes, its table is correct, and its Muon is Muon."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

# The rate at which each variant learns best; its loss grows by 1 for each octave away from it.
BEST = {"AdamW, dense": 2e-3, "Muon, dense": 8e-3}
RATES = ("1e-3", "2e-3", "4e-3", "8e-3")


@pytest.fixture
def benchmark(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    return importlib.import_module("convergence")


@pytest.fixture
def sweep(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., list[tuple[str, float, int]]]:
    """Run the program without the training; return the runs that each call would have trained."""
    trained: list[tuple[str, float, int]] = []

    def train(variant: Any, trouble: Any, trial: Any, progress: Any) -> Any:
        seed = trial.seed
        trained.append((variant.name, variant.rate, seed))
        name = variant.name.partition(", decay")[0]
        octaves = abs(np.log2(variant.rate / BEST[name]))
        known = benchmark.known_settings(variant, trouble, trial)
        settings = {"parameters": 139_584, **known}
        # The first seed favours the rate above the best one.
        luck = 1.25 if seed == 0 and variant.rate == 2 * BEST[name] else 0.0
        loss = 2 + octaves + seed / 8 - luck
        called = benchmark.run_name(variant, trouble)
        return benchmark.Run(called, loss, 100.0, 1.0, settings, [(0, 5.5)])

    monkeypatch.setattr(benchmark, "train", train)
    monkeypatch.setattr(benchmark, "Trial", lambda setting, text, heldout: setting)
    text = tmp_path / "text.txt"
    text.write_text("what is trained on\n" * 1000)

    def run(*words: str) -> list[tuple[str, float, int]]:
        trained.clear()
        corpus = ("--corpus", str(text))
        monkeypatch.setattr(sys, "argv", ["convergence.py", *corpus, *words])
        benchmark.main()
        return list(trained)

    return run


def test_all_rates_are_tried_and_a_lucky_one_is_passed_again(sweep: Any) -> None:
    done = sweep("--variants", "adamw", "--rates", *RATES, "--seeds", "0", "1", "2")
    assert done[:4] == [("AdamW, dense", float(rate), 0) for rate in RATES]
    # 4e-3 has 1.75 with the first seed and 3.125 with the next; 2e-3 has 2.0 with its first one.
    assert done[4:] == [("AdamW, dense", *run) for run in ((4e-3, 1), (2e-3, 1), (2e-3, 2))]


def test_a_killed_sweep_goes_on_where_it_was(sweep: Any, tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    words = ("--variants", "adamw", "--rates", *RATES, "--seeds", "0", "1", "--runs", str(file))
    assert len(sweep(*words)) == 6
    whole = file.read_bytes()
    assert sweep(*words) == []
    assert file.read_bytes() == whole
    # Killed while it wrote its last line, so that a part of it exists.
    file.write_bytes(whole[:-20])
    assert sweep(*words) == [("AdamW, dense", 2e-3, 1)]
    assert file.read_bytes() == whole


def test_other_settings_and_other_text_are_other_runs(sweep: Any, tmp_path: Path) -> None:
    words = ("--variants", "adamw", "--runs", str(tmp_path / "runs.jsonl"))
    assert len(sweep(*words)) == 1
    assert len(sweep(*words, "--steps", "100")) == 1
    assert len(sweep(*words, "--weight-decay", "0.1")) == 1
    (tmp_path / "text.txt").write_text("another text\n" * 1000)
    assert len(sweep(*words)) == 1
    assert sweep(*words) == []


def test_the_table_shows_the_best_rate_and_all_that_were_tried(
    sweep: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep("--variants", "adamw", "muon", "--rates", *RATES, "--seeds", "0", "1")
    table = capsys.readouterr().out.partition("variant ")[2].splitlines()[1:]
    assert table[0].split()[:6] == ["AdamW,", "dense", "0.002", "2", "2.062", "±"]
    assert table[1].strip() == (
        "rates tried (seeds): 0.001: 3.000 (1), 0.002: 2.062 (2), 0.004: 2.438 (2), 0.008: 4.000 (1)"
    )
    assert table[2].split()[:5] == ["Muon,", "dense", "0.008", "2", "2.062"]
    assert table[3].endswith("; the best is the highest")


def test_what_was_run_again_is_not_counted_twice(
    sweep: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = tmp_path / "earlier.json"
    words = ("--variants", "adamw", "--seeds", "0", "1")
    assert len(sweep(*words, "--json", str(earlier))) == 2
    assert sweep(*words, "--earlier", str(earlier)) == []
    # Files from before the text's digest was recorded do not identify the training text.
    document = json.loads(earlier.read_text())
    for run in document["runs"]:
        del run["settings"]["text_sha256"]
    earlier.write_text(json.dumps(document))
    assert len(sweep(*words, "--earlier", str(earlier))) == 2
    assert capsys.readouterr().out.splitlines()[-1].split()[:4] == ["AdamW,", "dense", "0.002", "2"]


def test_a_rate_without_a_loss_is_never_the_best(benchmark: Any) -> None:
    assert benchmark.best_rate({1.0: [float("nan"), 1.0], 2.0: [3.0], 4.0: [2.0]}) == 4.0
    assert benchmark.best_rate({1.0: [2.0], 2.0: [float("nan")]}) == 1.0


def evenness(matrix: torch.Tensor) -> float:
    """Return the median singular value divided by the largest: 1 if orthogonal."""
    lengths = torch.linalg.svdvals(matrix)
    return float(lengths.median() / lengths.max())


def test_muon_moves_hidden_matrices_by_the_rate_and_the_rest_as_adam_does(benchmark: Any) -> None:
    training = sys.modules["training"]
    setting = training.Setting(
        workers=2, sequences=1, steps=1, hidden=64, layers=1, seed=0, device="cpu"
    )
    text = np.random.default_rng(0).integers(0, 256, 60_000).astype(np.uint8)
    trial = training.Trial(setting, text, text)
    before = [parameter.detach().clone() for parameter in trial.parameters]
    # Private here: one step, where `train` takes thousands.
    training._DenseStep(training.Muon(), training.Trouble(), trial)(2.0**-6, 1)
    for spec, parameter, old in zip(trial.table, trial.parameters, before, strict=True):
        step = (parameter.detach() - old).double()
        if ".layers." in spec.name and parameter.dim() == 2:
            # The quintic takes all but the smallest singular values to between 0.7 and 1.2.
            assert step.square().mean().sqrt() == pytest.approx(2.0**-6, rel=0.2)
            assert evenness(step) > 0.6
            assert evenness(parameter.grad.double()) < 0.5
        else:
            # Adam's first step is the rate times the sign of the gradient.
            moved = step[step != 0].abs()
            assert moved.numel() > 0
            assert torch.quantile(moved, 0.5) == pytest.approx(2.0**-6, rel=1e-3)
