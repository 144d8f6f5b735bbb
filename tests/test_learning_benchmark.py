"""The learning benchmark: a sweep that is killed goes on, its table is honest, and its Muon is Muon."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

# Where each variant learns best, so that its loss grows by 1 for each octave away from there.
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
    """The program with the training left out; which runs each call of it trained."""
    trained: list[tuple[str, float, int]] = []

    def train(variant: Any, trouble: Any, trial: Any, progress: Any) -> Any:
        seed = trial.seed
        trained.append((variant.name, variant.rate, seed))
        octaves = abs(np.log2(variant.rate / BEST[variant.name.partition(", decay")[0]]))
        known = benchmark.known_settings(variant, trouble, trial)
        name = benchmark.run_name(variant, trouble)
        settings = {"parameters": 139_584, **known}
        return benchmark.Run(name, 2 + octaves + seed / 8, 100.0, 1.0, settings, [(0, 5.5)])

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


def test_all_rates_are_tried_once_and_further_seeds_at_the_best(sweep: Any) -> None:
    done = sweep("--variants", "adamw", "muon", "--rates", *RATES, "--seeds", "0", "1", "2")
    tried = [("AdamW, dense", float(rate), 0) for rate in RATES]
    assert done[:4] == tried
    assert done[4:6] == [("AdamW, dense", 2e-3, 1), ("AdamW, dense", 2e-3, 2)]
    assert done[10:] == [("Muon, dense", 8e-3, 1), ("Muon, dense", 8e-3, 2)]


def test_a_killed_sweep_goes_on_where_it_was(sweep: Any, tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    words = ("--variants", "adamw", "--rates", *RATES, "--seeds", "0", "1", "--runs", str(file))
    assert len(sweep(*words)) == 5
    whole = file.read_bytes()
    assert sweep(*words) == []
    assert file.read_bytes() == whole
    # Killed while it wrote its last line, so that a part of it is there.
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
        "rates tried, seed 0: 0.001: 3.000, 0.002: 2.000, 0.004: 3.000, 0.008: 4.000"
    )
    assert table[2].split()[:5] == ["Muon,", "dense", "0.008", "2", "2.062"]
    assert table[3].endswith("; the best is the highest tried")


def test_a_run_without_a_loss_is_never_the_best(benchmark: Any) -> None:
    assert benchmark._best([float("nan"), 3.0, 2.0]) == 2
    assert benchmark._best([2.0, float("nan")]) == 0


def evenness(matrix: torch.Tensor) -> float:
    """The median singular value over the largest: 1 if orthogonal."""
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
    training._dense_step(training.Muon(), training.Trouble(), trial)(2.0**-6, 1)
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
