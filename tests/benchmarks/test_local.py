"""The benchmark of local steps between rounds: what is sent, what stays, and what is reported."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_text import counting, make_runs_small

# Private here: `_tensors`, `_error`: what an aggregator has not sent yet: nothing of it may be lost.


@pytest.fixture
def local_steps(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    return importlib.import_module("local_steps")


@pytest.fixture
def trial_of(local_steps: Any) -> Any:
    training = importlib.import_module("training")

    def made(workers: int, steps: int) -> Any:
        setting = training.Setting(
            workers=workers, sequences=2, steps=steps, hidden=64, layers=1, seed=3, device="cpu"
        )
        return training.Trial(setting, *counting(), 8)

    return made


@pytest.mark.parametrize("steps", [1, 3])
def test_one_member_alone_with_a_plain_step_is_its_own_optimizer(
    local_steps: Any, trial_of: Any, steps: int
) -> None:
    recipes, training = local_steps.local_recipes, importlib.import_module("training")
    recipe = recipes.LocalRecipe(steps=steps, outer_rate=1.0, outer_momentum=0.0)
    locally, densely = trial_of(1, 6), trial_of(1, 6)
    recipes.train(recipe, 4e-3, locally)
    variant = training.Variant(name="AdamW", rate=4e-3, optimizer=training.AdamW())
    training.train(variant, training.Trouble(), densely, lambda number, loss: None)
    for mine, other in zip(locally.parameters, densely.parameters, strict=True):
        assert torch.allclose(mine, other, atol=1e-6)


def test_what_is_not_sent_is_kept(local_steps: Any, trial_of: Any) -> None:
    recipes = local_steps.local_recipes
    trial = trial_of(1, 1)
    speaker = recipes.Speaker(replace(recipes.SPARSELOCO, memory=1.0), trial)
    come = [torch.randn_like(parameter) for parameter in trial.parameters]
    said = [torch.zeros_like(parameter) for parameter in come]
    for number in range(1, 4):
        for total, part in zip(said, speaker.speak(come), strict=True):
            assert (part != 0).sum() <= max(1, 0.02 * part.numel())
            total += part
        for index, (total, each) in enumerate(zip(said, come, strict=True)):
            tensor = speaker._tensors[index]
            kept = importlib.import_module("recipes").joined(speaker._error[index], tensor)
            assert torch.allclose(total + kept.view(total.shape), number * each, atol=1e-4)


def test_two_bits_are_a_sign_and_one_of_two_sizes(local_steps: Any) -> None:
    values = torch.randn(5, 64)
    made = local_steps.local_recipes.in_two_bits(values)
    assert torch.equal(made.sign(), values.sign())
    assert all(len(row.abs().unique()) == 2 for row in made)
    # The sizes are means, so the sum of what is sent equals the sum of the values.
    assert torch.allclose(made.abs().sum(dim=1), values.abs().sum(dim=1), rtol=1e-5)
    alike = torch.full((1, 8), -2.0)
    assert torch.equal(local_steps.local_recipes.in_two_bits(alike), alike)


def test_bytes_are_shared_over_the_steps_of_a_round(local_steps: Any, trial_of: Any) -> None:
    recipes, trial = local_steps.local_recipes, trial_of(1, 1)
    assert recipes.bytes_a_step(replace(recipes.DILOCO, steps=10), trial) == trial.elements / 5
    once = recipes.bytes_a_step(replace(recipes.SPARSELOCO, steps=1), trial)
    assert recipes.bytes_a_step(replace(recipes.SPARSELOCO, steps=4), trial) == once / 4
    # 64 of 4,096: eight bits of position and two of value for each, against 16 for each of all.
    assert 60 < 2 * trial.elements / once < 120


def test_each_way_learns(local_steps: Any, trial_of: Any) -> None:
    for way, kind in local_steps.WAYS.items():
        if isinstance(kind, local_steps.LocalRecipe):
            curve = local_steps.local_recipes.train(replace(kind, steps=2), 4e-3, trial_of(2, 4))
            assert [number for number, _ in curve] == [0, 2, 4]
            assert curve[-1][1] < curve[0][1], way


def test_runs_are_kept_and_told(
    local_steps: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_runs_small(monkeypatch)
    written, drawn = tmp_path / "local.json", tmp_path / "local.png"
    larger = "rounds 4 times larger, 8 coefficients"
    one_speaks = "one speaks for all of a block, by 1 bit of 4"
    command = ["--work", str(tmp_path / "work"), "--json", str(written), "--plot", str(drawn)]
    command += ["--steps", "4", "--workers", "2", "--sequences", "1", "--layers", "1"]
    chosen = [local_steps.PROGRAM, larger, one_speaks, "SparseLoCo, 5 steps"]
    command += ["--seeds", "1", "--variants", *chosen]
    local_steps.main(command)
    first = json.loads(written.read_text(encoding="utf-8"))
    ways = first["ways"]
    assert list(ways) == chosen
    assert ways[one_speaks]["choices"]["speakers"]["rotation_steps"] == 4
    assert ways[larger]["bytes_a_round"] == ways[local_steps.PROGRAM]["bytes_a_round"] / 4
    assert ways[larger]["beside"]["of"] == local_steps.PROGRAM
    assert ways["SparseLoCo, 5 steps"]["choices"]["chosen"] == 64
    assert drawn.stat().st_size > 1000
    kept = (tmp_path / "work" / "runs.jsonl").read_bytes()
    local_steps.main([*command, "--known"])
    assert (tmp_path / "work" / "runs.jsonl").read_bytes() == kept
    assert json.loads(written.read_text(encoding="utf-8")) == first
    assert "the program" in capsys.readouterr().out
