"""The harness of learning: interrupted runs end alike, rates are found, and the peers are what they are
called."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

# Private here: `_masks`: which coefficients a round chooses.

ROUNDS, INTERRUPTED = 6, 3
RATE = 2.0**-8
SMALL = (
    *("--size", "tiny", "--members", "2", "--sequences", "1", "--length", "32"),
    *("--rounds", str(ROUNDS), "--rates", str(RATE), "--seeds"),
)
# Together these have every kind of state: torch's optimizers, the program's own moments, parameters one
# round old, own parameters, unsent errors, an exchange in mid-cycle, decided sums.
WAYS = (
    *("dense Muon", "dense AdamW", "default", "signs"),
    *("default, overlap, 0.5 of a step ahead", "default, half are late", "MuLoCo, 4 local steps"),
    *("SparseLoCo, 4 local steps", "program's exchange, Muon, 4 local steps", "shared masks"),
    *("local steps, momentum kept, H = 4", "default, one gradient, H = 4"),
)


class Killed(Exception):
    """An interruption, as seen from inside the run."""


@pytest.fixture
def learning(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    learning = importlib.import_module("learning")
    lines = "".join(f"{n} is followed by {n + 1}\n" for n in range(9000))
    text = np.frombuffer(lines.encode(), "u1")
    monkeypatch.setattr(learning, "standard_library", lambda: (text[:-9000], text[-9000:]))
    monkeypatch.setattr(part("trial"), "HELDOUT_SEQUENCES", 8)
    monkeypatch.setattr(part("checkpoint"), "EVERY_SECONDS", 0.0)
    return learning


def part(name: str) -> Any:
    """Return a module of the harness."""
    return importlib.import_module(f"learners.{name}")


def runs(learning: Any, work: Path, *ways: str, options: tuple[str, ...] = ()) -> list[Any]:
    """Run these ways; return what the file then has."""
    learning.main([*SMALL, "--work", str(work), "--ways", *ways, *options])
    return part("runs").read_runs(work / "runs.jsonl")


@contextmanager
def dying(trial: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a run die at the beginning of its fourth round."""
    shares = trial.shares

    def until(self: Any, number: int) -> Any:
        if number > INTERRUPTED:
            raise Killed
        return shares(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(trial, "shares", until)
        with pytest.raises(Killed):
            yield


def interrupt(learning: Any, work: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Start a run that dies; return the file that it leaves."""
    with dying(part("trial").Trial, monkeypatch):
        runs(learning, work, way)
    (file,) = work.glob("checkpoint-*")
    return file


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupted_run_ends_bit_identical(
    learning: Any,
    way: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (whole,) = runs(learning, tmp_path / "whole", way)
    file = interrupt(learning, tmp_path / "other", way, monkeypatch)
    (resumed,) = runs(learning, tmp_path / "other", way)
    assert "resumes after round 3" in capsys.readouterr().out
    assert (resumed.curve, resumed.figures) == (whole.curve, whole.figures)
    assert whole.curve[-1][1] < whole.curve[0][1]
    assert not file.exists()


@pytest.mark.parametrize("damage", ["cut", "empty", "another", "larger", "nothing"])
def test_a_damaged_checkpoint_costs_its_run_and_no_other(
    learning: Any,
    damage: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (whole,) = runs(learning, tmp_path / "whole", "default")
    file = interrupt(learning, tmp_path / "other", "default", monkeypatch)
    with part("checkpoint").safe_open(file, "pt") as there:
        tensors, about = load_file(file), there.metadata()
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-1000])
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "another":
        save_file(tensors, file, about | {"run": "{}"})
    elif damage == "larger":
        save_file(tensors | {"0": torch.zeros(7)}, file, about)
    else:
        save_file({}, file, about)
    (made,) = runs(learning, tmp_path / "other", "default")
    assert "cannot be used, so its run restarts" in capsys.readouterr().err
    assert made.curve == whole.curve


def test_images_and_noise_are_the_same_after_an_interruption(
    learning: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits = part("digits")
    images = np.random.default_rng(0).integers(0, 10, (30, digits.DIGITS.sample_bytes), np.uint8)
    setting = part("trial").Setting(
        data="digits",
        hidden=8,
        layers=1,
        members=2,
        sequences=5,
        length=65,
        rounds=ROUNDS,
    )

    def curve(folder: Path) -> Any:
        trial, checkpoint = digits.ImageTrial(setting, 0, images), part("checkpoint").Checkpoint
        method = learning.WAYS["default"][0]
        return part("way").train(method, 1e-3, trial, checkpoint(folder, {})).curve

    whole = curve(tmp_path)
    (tmp_path / f"{next(tmp_path.glob('checkpoint-*')).name}").unlink()
    with dying(digits.ImageTrial, monkeypatch):
        curve(tmp_path)
    assert curve(tmp_path) == whole


def test_what_is_known_is_not_trained_again_whatever_it_is_called(
    learning: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(runs(learning, tmp_path, "default", options=("--top-k", "2", "8"))) == 2
    assert len(runs(learning, tmp_path, "default")) == 2, "k = 8 is the default"
    monkeypatch.setitem(learning.WAYS, "of another name", learning.WAYS["default"])
    assert len(runs(learning, tmp_path, "of another name")) == 2
    assert len(runs(learning, tmp_path, "default", options=("--rounds", "5"))) == 3
    (tmp_path / "runs.jsonl").write_text('{"way": "of an older format"}\n')
    with pytest.raises(SystemExit, match="give another --work"):
        runs(learning, tmp_path, "default")


@pytest.mark.parametrize("cut", [1, 10])
def test_a_truncated_line_is_run_again_and_written_over(
    learning: Any, tmp_path: Path, cut: int
) -> None:
    whole = runs(learning, tmp_path, "dense AdamW", "dense Muon")
    file = tmp_path / "runs.jsonl"
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size - cut)
    assert part("runs").read_runs(file) == whole[:1]
    again = runs(learning, tmp_path, "dense AdamW", "dense Muon")
    assert [(run.way, run.curve) for run in again] == [(run.way, run.curve) for run in whole]


@pytest.fixture
def bench(learning: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return benches whose runs have losses on a parabola around 8e-3, and no training."""

    def train(method: Any, rate: float, trial: Any, checkpoint: Any) -> Any:
        del method, checkpoint
        loss = 2 + np.log2(rate / 8e-3) ** 2 + trial.seed / 8
        return SimpleNamespace(curve=[(1, float(loss))], sent=1.0, figures={})

    monkeypatch.setattr(part("runs"), "train", train)

    def made(**options: Any) -> Any:
        def trial(seed: int) -> Any:
            return SimpleNamespace(seed=seed, elements=1, dense_bytes=1.0)

        return part("runs").Bench(settings={}, trial=trial, **options)

    return made


def test_the_search_for_a_rate_goes_on_while_the_best_is_at_the_edge(
    bench: Any, learning: Any, tmp_path: Path
) -> None:
    ways = {"way": (learning.WAYS["default"][0], 1e-3)}
    tried, reported = bench(work=tmp_path).sweep(ways, [], [1, 2])["way"]
    assert [run.rate for run in tried] == [0.5e-3, 1e-3, 2e-3, 4e-3, 8e-3, 16e-3]
    assert [(run.rate, run.seed) for run in reported] == [(8e-3, 1), (8e-3, 2)]
    known = bench(work=tmp_path, known=True).sweep(ways, [], [1, 2, 3])["way"]
    assert (known[0], [run.seed for run in known[1]]) == (tried, [1, 2])
    assert bench(work=None, known=True).sweep(ways, [], [1]) == {}
    given, _ = bench(work=None).sweep(ways, [4e-3, 1e-3], [])["way"]
    assert [run.rate for run in given] == [1e-3, 4e-3]


def test_the_json_has_settings_peers_and_a_fit(learning: Any, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    words = ["--ways", "dense Muon", "default", "--top-k", "2", "8", "--json", str(file)]
    learning.main([*SMALL, *words, "--rounds", "2", "4", "--predict", "rounds=8", "k=8"])
    found = json.loads(file.read_text(encoding="utf-8"))
    assert [each["settings"]["rounds"] for each in found["comparisons"]] == [2, 4]
    ways = found["comparisons"][1]["ways"]
    assert set(ways) == {"dense Muon", "default, k = 2", "default, k = 8"}
    assert ways["default, k = 8"]["above_muon"]["percent"] > 0
    assert ways["default, k = 8"]["choices"]["optimizer"]["top_k"] == 8
    assert ways["default, k = 8"]["reduction"] > ways["dense Muon"]["reduction"] == 1
    assert set(found["trend"]["above_muon"]["each"]) == {"rounds", "k"}
    assert found["trend"]["predicted"]["deviation"] >= 0


def test_wrong_options_are_refused_in_one_line(learning: Any, capsys: Any) -> None:
    for words in (["--seeds", "0"], ["--known"], ["--top-k", "2", "--fewer", "9"], ["no-study"]):
        with pytest.raises(SystemExit) as ended:
            learning.main(words)
        assert ended.value.code == 2
    with pytest.raises(SystemExit, match="times smaller"):
        learning.main([*SMALL, "--ways", "default", "--fewer", "1000000"])
    capsys.readouterr()


def test_every_way_of_a_study_exists(learning: Any, capsys: Any) -> None:
    for name, study in learning.STUDIES.items():
        options = learning.parsed([name])
        assert set(options.ways) <= set(learning.WAYS), name
        assert set(study) <= set(vars(options)), name
    learning.main(["--list"])
    assert "  shared masks\n" in capsys.readouterr().out


def evenness(matrix: torch.Tensor) -> float:
    """Return the median singular value divided by the largest: 1 if orthogonal."""
    lengths = torch.linalg.svdvals(matrix)
    return float(lengths.median() / lengths.max())


def small_trial(learning: Any, **settings: Any) -> Any:
    options = learning.parsed([*SMALL, "--ways", "default"])
    setting = replace(next(learning.settings_of(options)), **settings)
    return learning.bench_of(setting, options).trial(0)


def test_muon_moves_hidden_matrices_by_the_rate_and_the_rest_as_adam_does(learning: Any) -> None:
    # Noise of many samples, so that gradients have full rank.
    text = np.random.default_rng(0).integers(0, 256, 60_000).astype(np.uint8)
    setting = replace(small_trial(learning).setting, length=128)
    trial = part("trial").Trial(setting, 0, text, text)
    before = [parameter.detach().clone() for parameter in trial.parameters]
    learning.WAYS["dense Muon"][0].learner(trial).step(2.0**-6, 1)
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


def test_micro_batches_change_the_gradient_by_rounding_alone(learning: Any) -> None:
    whole, parts = (small_trial(learning, sequences=5, micro_batch=n) for n in (256, 2))
    batch = whole.shares(1)[0]
    for one, other in zip(whole.gradients(batch, 1), parts.gradients(batch, 1), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_one_local_step_with_everything_sent_is_dense_training(learning: Any) -> None:
    """With an outer rate of 1 and no outer momentum, and one member."""
    losses = []
    for method in (
        learning.WAYS["dense AdamW"][0],
        learning.LocalSteps(steps=1, outer_rate=1.0, outer_momentum=0.0),
    ):
        trial = small_trial(learning, members=1)
        checkpoint = part("checkpoint").Checkpoint(None, {})
        losses.append(part("way").train(method, RATE, trial, checkpoint).curve[-1][1])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_members_exchange_once_in_all_their_local_steps(learning: Any) -> None:
    """The shared parameters move in every fourth round alone, with and without steps."""
    moved, gathered = (
        learning.WAYS[f"{name}, H = 4"][0] for name in ("local steps", "default, one gradient")
    )
    for method in (moved, gathered):
        trial = small_trial(learning)
        learner = method.learner(trial)
        before = [parameter.detach().clone() for parameter in trial.parameters]
        for number in range(1, 5):
            changed = [
                not torch.equal(parameter, old)
                for parameter, old in zip(trial.parameters, before, strict=True)
            ]
            assert not any(changed)
            learner.step(RATE, number)
        assert not torch.equal(trial.parameters[0], before[0])
        assert learner.sent == learning.WAYS["default"][0].learner(trial).sent / 4


def test_masks_are_alike_and_every_coefficient_has_its_turn(learning: Any) -> None:
    masks = learning.WAYS["shared masks, all drawn"][0].at(64)
    learner = masks.learner(small_trial(learning))
    seen = [torch.zeros(64 * 64) for _ in range(1)]
    for number in range(1, 400):
        first = learner._masks(number)[0][0]
        assert len(set(first.tolist())) == 64
        seen[0][first] += 1
    assert (seen[0] > 0).float().mean() > 0.95


def test_members_with_the_same_samples_have_everything_in_common(learning: Any) -> None:
    trial = small_trial(learning)
    shares = trial.shares
    trial.shares = lambda number: [shares(number)[0]] * 2
    learner = learning.WAYS["default"][0].learner(trial)
    found = [learner.step(RATE, number) for number in range(1, ROUNDS + 1)][-1]
    assert found["common"] == pytest.approx(1.0, abs=1e-5)
    assert found["again"] == 1.0
    assert 0 < found["sent"] < 1


def test_a_plane_is_found_again_with_its_uncertainty(learning: Any) -> None:
    fits = part("fits")
    places = [{"k": k, "members": n} for k in (2.0, 8.0, 32.0) for n in (8.0, 64.0)]
    values = [10 - 1.5 * np.log2(p["k"]) + 0.5 * np.log2(p["members"]) for p in places]
    plane = fits.fit(list(zip(places, values, strict=True)))
    assert plane.each == pytest.approx({"k": -1.5, "members": 0.5})
    assert plane.at({"k": 16.0, "members": 32.0})[0] == pytest.approx(6.5)
    # On a line over logarithms 0 to 3 the values ±1, ∓1 leave a known residual.
    line = [({"x": 2.0**n}, value) for n, value in enumerate((1.0, -1.0, -1.0, 1.0))]
    found = fits.fit(line)
    assert found.residual == pytest.approx(2**0.5)
    # A quarter for the mean, and for the slope (3 - 1.5)² / 5.
    assert found.at({"x": 8.0})[1] == pytest.approx(2**0.5 * (1 + 0.25 + 0.45) ** 0.5)
    for few in ([], line[:1], [({"k": 8.0}, 1.0)] * 3):
        with pytest.raises(ValueError, match="do not determine"):
            fits.fit(few)


def test_equivalence_takes_several_seeds(learning: Any) -> None:
    above = part("fits").percent_above
    assert above([1.1], [1.0]) == {
        "percent": pytest.approx(10.0),
        "error": None,
        "equivalent_within": None,
    }
    found = above([1.01, 1.03, 1.02], [1.0, 1.0, 1.0])
    assert found["percent"] == pytest.approx(2.0)
    assert found["error"] == pytest.approx(1 / 3**0.5)
    assert found["equivalent_within"] == pytest.approx(2.0 + 2.920 / 3**0.5)
