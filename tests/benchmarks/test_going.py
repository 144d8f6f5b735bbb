"""An interrupted benchmark run ends with the same result as an uninterrupted one."""

from __future__ import annotations

import errno
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distro_node.protocol.wire.manifest import OptimizerSpec
from safetensors.torch import load_file, save_file
from small_text import make_runs_small

ROUNDS, INTERRUPTED = 6, 3
# Together these cover all state of a run: torch's optimizers, the program's, own moments, unsent
# coefficients, a momentum of sums, Adam beside a recipe, aggregators.
WAYS = (
    *("Muon", "AdamW", "the program", "smoothed", "divided"),
    *("unsent", "sums", "Adam", "speakers", "two speakers"),
)


class Killed(Exception):
    """An interruption, as seen from inside the run."""


@pytest.fixture
def frontier(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    frontier = importlib.import_module("frontier")
    dense, speakers = importlib.import_module("dense"), importlib.import_module("speakers")
    make_runs_small(monkeypatch)
    ours = frontier.OURS
    ways = {
        "Muon": dense.Muon(),
        "AdamW": dense.AdamW(weight_decay=0.1),
        "the program": OptimizerSpec(top_k=4),
        "smoothed": OptimizerSpec(top_k=4, preconditioner="muon", smoothing=0.5, step="scaled"),
        "divided": OptimizerSpec(top_k=4, preconditioner="rms", damping=0.5),
        "unsent": replace(ours, unsent=0.9, smoothing=0.5),
        "sums": replace(ours, smooth=0.5),
        "Adam": replace(ours, others="adam"),
        "speakers": frontier.speaking(speakers.Speakers(rotation_steps=4)),
        "two speakers": frontier.speaking(speakers.Speakers(rotation_steps=4, each=2)),
    }
    monkeypatch.setattr(frontier, "WAYS", ways)
    monkeypatch.setattr(importlib.import_module("going"), "EVERY_SECONDS", 0.0)
    return frontier


def bench(frontier: Any, work: Path, *options: str) -> Any:
    words = ["--hidden", "64", "--layers", "1", "--workers", "2", "--sequences", "1"]
    words += ["--steps", str(ROUNDS), "--seeds", "9", "--work", str(work), *options]
    return frontier.Frontier(frontier.parsed("", list(frontier.WAYS), words))


@contextmanager
def dying(trial: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a run of this kind of trial die in the middle of its fourth round."""
    batches = trial.next_batch
    drawn = 0

    def next_batch(self: Any, workers: int | None = None) -> Any:
        nonlocal drawn
        drawn += 1
        if drawn > INTERRUPTED:
            raise Killed
        return batches(self, workers)

    with monkeypatch.context() as patch:
        patch.setattr(trial, "next_batch", next_batch)
        with pytest.raises(Killed):
            yield


def interrupt(frontier: Any, work: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Start a run that dies; return the file that it leaves."""
    with dying(importlib.import_module("training").Trial, monkeypatch):
        bench(frontier, work).run(way, 2.0**-8, 0)
    (file,) = work.glob("going-*")
    return file


@pytest.mark.parametrize("way", WAYS)
def test_it_ends_as_if_nobody_had_interrupted_it(
    frontier: Any,
    way: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = bench(frontier, tmp_path / "whole").run(way, 2.0**-8, 0)
    file = interrupt(frontier, tmp_path / "other", way, monkeypatch)
    taken_up = bench(frontier, tmp_path / "other").run(way, 2.0**-8, 0)
    assert "goes on after round 3" in capsys.readouterr().out
    assert taken_up.curve == whole.curve
    assert taken_up.bytes_a_round == whole.bytes_a_round
    assert not file.exists()
    # The next run starts from the beginning.
    again = bench(frontier, tmp_path / "other").run(way, 2.0**-8, 1)
    assert "goes on" not in capsys.readouterr().out
    assert again.curve[0][0] == 0


def test_another_run_does_not_go_on_from_it(
    frontier: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = interrupt(frontier, tmp_path, "speakers", monkeypatch)
    bench(frontier, tmp_path).run("speakers", 2.0**-8, 1)
    bench(frontier, tmp_path).run("speakers", 2.0**-7, 0)
    bench(frontier, tmp_path, "--sequences", "2").run("speakers", 2.0**-8, 0)
    told = capsys.readouterr()
    assert "goes on" not in told.out
    assert not told.err
    assert file.exists()


def test_images_come_in_the_same_order_and_with_the_same_noise(
    frontier: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diffusion, runs = importlib.import_module("diffusion"), importlib.import_module("runs")
    training, going = importlib.import_module("training"), importlib.import_module("going")
    images = np.random.default_rng(0).integers(0, 10, (30, diffusion.DIGITS.sample_bytes), np.uint8)
    setting = training.Setting(
        workers=2, sequences=5, steps=ROUNDS, hidden=8, layers=1, seed=0, device="cpu"
    )

    def curve(folder: Path) -> Any:
        trial = diffusion.ImageTrial(setting, images)
        kept = going.Going(folder, {})
        done = runs.outcome("", 1e-3, trial, whole=1, dense=1.0, ours=OptimizerSpec(), going=kept)
        return done["curve"]

    folders = [tmp_path / name for name in ("whole", "other")]
    for folder in folders:
        folder.mkdir()
    whole = curve(folders[0])
    with dying(diffusion.ImageTrial, monkeypatch):
        curve(folders[1])
    assert curve(folders[1]) == whole


@pytest.mark.parametrize("damage", ["cut", "empty", "another", "larger", "order", "nothing"])
def test_a_damaged_file_costs_its_run_and_no_other(
    frontier: Any,
    damage: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = bench(frontier, tmp_path / "whole").run("speakers", 2.0**-8, 0)
    work = tmp_path / "other"
    file = interrupt(frontier, work, "speakers", monkeypatch)
    tensors, told = load_file(file), _told(file)
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-1000])
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "another":
        save_file(tensors, file, told | {"run": "{}"})
    elif damage == "larger":
        save_file(tensors | {"0": torch.zeros(7)}, file, told)
    elif damage == "order":
        save_file(tensors, file, told | {"order": '{"bit_generator": "none"}'})
    else:
        save_file({}, file, told)
    made = bench(frontier, work).run("speakers", 2.0**-8, 0)
    assert "is of no use, so its run begins anew" in capsys.readouterr().err
    assert made.curve == whole.curve
    assert not file.exists()


def test_a_full_disk_does_not_end_a_run(
    frontier: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = bench(frontier, tmp_path / "whole").run("speakers", 2.0**-8, 0)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(importlib.import_module("going"), "write_atomically", full)
    made = bench(frontier, tmp_path / "other").run("speakers", 2.0**-8, 0)
    assert "No space left on device" in capsys.readouterr().err
    assert made.curve == whole.curve


def test_time_before_an_interruption_counts(
    frontier: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = interrupt(frontier, tmp_path, "speakers", monkeypatch)
    save_file(load_file(file), file, _told(file) | {"seconds": "5000"})
    assert bench(frontier, tmp_path).run("speakers", 2.0**-8, 0).seconds > 5000


def test_what_goes_wrong_cannot_be_taken_up(frontier: Any, tmp_path: Path) -> None:
    training, going = importlib.import_module("training"), importlib.import_module("going")
    trial = bench(frontier, tmp_path).trial(0)
    variant = training.Variant(name="ours", rate=0.1)
    trouble = training.Trouble(late=0.5)
    with pytest.raises(ValueError, match="taken up"):
        training.train(variant, trouble, trial, lambda *_: None, going.Going(tmp_path, {}))


def _told(file: Path) -> dict[str, str]:
    going = importlib.import_module("going")
    with going.safe_open(file, "pt") as there:
        return there.metadata()
