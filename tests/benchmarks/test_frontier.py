"""The benchmark of the optimizers between dense Muon and the program: its parts, defaults and files."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distro_node.node.create.manifest_file import OptimizerTable
from distro_node.node.trainer.optimizer.exact_step import apply_step
from distro_node.node.trainer.optimizer.optimizer import LocalOptimizer, orthogonalised
from distro_node.protocol.codec.update import DecodedUpdate, update_layout
from distro_node.protocol.wire.manifest import OptimizerSpec, ParameterSpec
from small_text import counting, make_runs_small


@pytest.fixture
def frontier(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    return importlib.import_module("frontier")


@pytest.mark.parametrize("shape", [(128, 64), (64, 192), (1, 64), (96, 5)])
def test_what_is_cut_and_transformed_comes_back(frontier: Any, shape: tuple[int, int]) -> None:
    recipes = importlib.import_module("recipes")
    tensor = update_layout([ParameterSpec(name="t", shape=shape)], 64, 1).tensors[0]
    matrix = torch.randn(tensor.rows, tensor.columns)
    assert torch.equal(recipes.joined(recipes.cut(matrix, tensor), tensor), matrix)
    for basis in ("cosine", "random"):
        there = recipes.transformed(matrix, tensor, basis)
        assert torch.isclose(there.norm(), matrix.norm(), rtol=1e-4)
        back = recipes.restored(there, tensor, basis)
        assert torch.allclose(back, matrix, atol=1e-5)


@pytest.mark.parametrize("shape", [(64, 64), (64, 192), (192, 64)])
def test_orthogonal_matrices_have_elements_of_size_one(shape: tuple[int, int]) -> None:
    made = orthogonalised(torch.randn(3, *shape), 5)
    values = torch.linalg.svdvals(made) / max(shape) ** 0.5
    # The quintic brings all but the very smallest near 1.
    assert float(values.quantile(0.05)) > 0.6
    assert float(values.max()) < 1.3


@pytest.mark.parametrize("kind", ["plain", "smoothed", "now"])
def test_recipes_are_the_program(frontier: Any, kind: str) -> None:
    recipes, training = importlib.import_module("recipes"), importlib.import_module("training")
    setting = training.Setting(
        workers=1, sequences=1, steps=1, hidden=64, layers=1, seed=3, device="cpu"
    )
    trial = training.Trial(setting, *counting(), 8)
    recipe, spec = {
        "plain": (frontier.OURS, OptimizerSpec()),
        "smoothed": (replace(frontier.OURS, smoothing=0.5), OptimizerSpec(smoothing=0.5)),
        "now": (frontier.OURS_NOW, OptimizerTable().spec()),
    }[kind]
    layout = update_layout(trial.table, spec.chunk, spec.top_k)
    program = LocalOptimizer(layout, trial.parameters, spec)
    member = recipes.Member(recipe, trial)
    for number in range(1, 4):
        gradients = [gradient.clone() for gradient in trial.gradients(trial.next_batch())]
        sent = member.speak([gradient.clone() for gradient in gradients])
        program.accumulate(gradients)
        taken = program.take(number)
        program.forget(number)
        before = [parameter.detach().clone() for parameter in trial.parameters]
        recipes.Together(recipe, trial).step(sent, 2.0**-8)
        moved = [(p - old).detach() for p, old in zip(trial.parameters, before, strict=True)]
        with torch.no_grad():
            for parameter, old in zip(trial.parameters, before, strict=True):
                parameter.copy_(old)
        update = DecodedUpdate(taken.positions, taken.signs)
        now = [parameter.data for parameter in trial.parameters]
        apply_step(now, layout, [update], 2.0**-8, 0.0, step=spec.step)
        for index, tensor in enumerate(layout.tensors):
            said = sent[index].reshape(tensor.blocks, -1)
            # Where the momentum is zero the program sends something, this recipe nothing.
            alive = (said != 0).any(dim=1)
            there = torch.from_numpy(taken.positions[index].astype(np.int64))[alive]
            signs = torch.from_numpy(taken.signs[index])[alive]
            assert torch.equal(said[alive].gather(1, there), signs.float())
            step = (trial.parameters[index] - before[index]).detach().view(-1)
            mine = moved[index].view(-1)
            # The program's basis has integers, this one does not.
            assert float((step.sign() == mine.sign())[mine != 0].float().mean()) > 0.98
            if alive.all():
                assert float((step - mine).norm()) < 0.2 * float(mine.norm())


@pytest.fixture
def trial(frontier: Any) -> Any:
    training = importlib.import_module("training")
    setting = training.Setting(
        workers=4, sequences=1, steps=1, hidden=64, layers=1, seed=3, device="cpu"
    )
    return training.Trial(setting, *counting(), 8)


def test_what_does_not_count_goes_back(frontier: Any, trial: Any) -> None:
    recipes = importlib.import_module("recipes")
    member = recipes.Member(frontier.WAYS["now, the strongest 64 of sums of 64 values"], trial)
    gradients = [gradient.clone() for gradient in trial.gradients(trial.next_batch())]
    sent = member.speak(gradients)
    left = [momentum.clone() for momentum in member.momentum]
    counted = [recipes.strongest(total, 16) for total in sent]
    member.take_back(counted)
    for total, mask, before, after in zip(sent, counted, left, member.momentum, strict=True):
        assert mask.flatten(1).sum(1).max() <= 16
        # The strongest coefficients count: none of the others is stronger.
        strength = total.abs().flatten(1)
        weakest = strength.masked_fill(mask.flatten(1) == 0, torch.inf).amin(1)
        assert torch.all((strength * (1 - mask.flatten(1))).amax(1) <= weakest)
        assert torch.allclose(after, before + total * (1 - mask))


def test_who_makes_sums_for_all_receives_a_share_of_each_update(frontier: Any, trial: Any) -> None:
    def received(way: str) -> float:
        return frontier.bytes_each(frontier.WAYS[way], trial)

    values = frontier.update_bytes(frontier.WAYS["now, values"], 64, trial)
    assert received("now, the strongest 64 of sums of 64 values") == 2 * values / 4
    everything = 2.0 * trial.elements
    assert received("now, the strongest 64 of sums of all values") == (everything + values) / 4
    alone = frontier.update_bytes(frontier.OURS, 64, trial)
    assert received("now, one speaks for all, 64 coefficients") == alone / 4
    assert received(frontier.NOW) == frontier.update_bytes(frontier.OURS, 8, trial)


def _voted(trial: Any, sign: float) -> list[torch.Tensor]:
    """Return what all four members would send if they agreed completely."""
    return [
        torch.full((tensor.blocks, tensor.block_rows, tensor.block_columns), 4 * sign)
        for tensor in update_layout(trial.table, 64, 64).tensors
    ]


@pytest.mark.parametrize("each", [1, 2])
def test_speakers_say_what_they_hear_and_only_once(frontier: Any, trial: Any, each: int) -> None:
    speakers = importlib.import_module("speakers")
    spoken = speakers.Heard(speakers.Speakers(rotation_steps=64, top_k=32, each=each), trial)
    first = spoken.speak(_voted(trial, -1.0), 1)
    index = next(i for i, total in enumerate(first) if total.shape[1:] == (64, 64))
    # One aggregator has received 64 of 4,096 coefficients; two aggregators have received different ones.
    assert torch.equal(
        first[index].flatten(1).sum(1), torch.full((len(first[index]),), -32.0 * each)
    )
    assert first[index].min() == -1.0
    # No member votes now: the other 32 follow, and none of the first again.
    silent = [torch.zeros_like(total) for total in first]
    second = spoken.speak(silent, 2)
    assert torch.equal(second[index].flatten(1).sum(1), first[index].flatten(1).sum(1))
    assert torch.all(first[index] * second[index] == 0)
    assert all(torch.all(total == 0) for total in spoken.speak(silent, 3))


def test_a_liar_among_those_who_send_bits_is_outvoted(frontier: Any, trial: Any) -> None:
    speakers = importlib.import_module("speakers")
    spoken = speakers.Heard(speakers.Speakers(rotation_steps=1), trial)
    three_to_one = [total / 2 for total in _voted(trial, 1.0)]
    for total in spoken.speak(three_to_one, 1):
        assert torch.all(total >= 0)
        assert torch.any(total > 0)


@pytest.mark.parametrize(
    ("coefficients", "rotation_steps"), [(4096, 4), (4096, 3), (10, 4), (3, 8)]
)
def test_every_coefficient_has_its_turn_once(
    frontier: Any, coefficients: int, rotation_steps: int
) -> None:
    speakers = importlib.import_module("speakers")
    tensor = update_layout(
        [ParameterSpec(name="t", shape=(coefficients,))], coefficients, 1
    ).tensors[0]
    turns = speakers.turns_of(tensor, rotation_steps)
    assert sorted(torch.cat(turns).tolist()) == list(range(coefficients))
    assert max(map(len, turns)) == speakers.heard(tensor, rotation_steps)
    assert len(turns) <= rotation_steps


def test_what_is_downloaded_does_not_grow_where_one_speaks_for_all(frontier: Any) -> None:
    training, speakers = importlib.import_module("training"), importlib.import_module("speakers")
    setting = training.Setting(
        workers=4, sequences=1, steps=1, hidden=64, layers=1, seed=3, device="cpu"
    )
    few = training.Trial(setting, *counting(), 8)
    many = training.Trial(replace(setting, workers=40), *counting(), 8)
    for each in (1, 2):
        chosen = speakers.Speakers(rotation_steps=4, each=each)
        assert 40 * chosen.received(many) == pytest.approx(4 * chosen.received(few))
        # A quarter of a bit for each element, besides the aggregators' own updates.
        bits = 4 * chosen.received(few) / each - frontier.update_bytes(frontier.OURS_NOW, 64, few)
        assert bits == pytest.approx(few.elements / 32, rel=0.01)


def test_each_way_learns(frontier: Any) -> None:
    training = importlib.import_module("training")
    setting = training.Setting(
        workers=2, sequences=1, steps=2, hidden=64, layers=1, seed=1, device="cpu"
    )
    for way, recipe in frontier.WAYS.items():
        # Those without a recipe, Muon and the program, are trained in other tests.
        if isinstance(recipe, frontier.Recipe):
            curve = frontier.train_recipe(recipe, 4e-3, training.Trial(setting, *counting(), 8))
            assert curve[-1][1] < curve[0][1], way


def test_runs_are_kept_and_nothing_is_done_twice(
    frontier: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_runs_small(monkeypatch)
    written = tmp_path / "frontier.json"
    command = ["--work", str(tmp_path / "work"), "--json", str(written), "--seeds", "1"]
    command += ["--steps", "2", "--workers", "2", "--sequences", "1", "--layers", "1"]
    ours = list(frontier.DOWN)[-1]
    frontier.main([*command, "--variants", frontier.MUON, ours, "2 coefficients"])
    kept = (tmp_path / "work" / "runs.jsonl").read_bytes()
    first = json.loads(written.read_text(encoding="utf-8"))
    assert list(first["ways"]) == [frontier.MUON, ours, "2 coefficients"]
    assert first["ways"]["2 coefficients"]["beside"]["of"] == ours
    assert first["ways"][ours]["reduction"] > 500
    frontier.main([*command, "--known"])
    assert (tmp_path / "work" / "runs.jsonl").read_bytes() == kept
    assert json.loads(written.read_text(encoding="utf-8")) == first
    assert "above Muon" in capsys.readouterr().out
