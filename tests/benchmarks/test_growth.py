"""The benchmark of growing swarms: the same tokens for every swarm, and what its members download."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from distro_node.protocol.codec.layout import update_layout
from distro_node.protocol.wire.manifest import ParameterSpec
from small_text import make_runs_small

WAYS = ["dense Muon", "8 members, k = 8", "16 members, k = 4"]


@pytest.fixture
def growth(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    make_runs_small(monkeypatch)
    return importlib.import_module("growth")


def test_swarms_of_every_size_see_the_same_tokens(
    growth: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: dict[str, set[tuple[int, int]]] = {}
    text_runs = importlib.import_module("text_runs")
    train = text_runs.train

    def watched(variant: Any, trouble: Any, trial: Any, progress: Any, going: Any) -> Any:
        setting = trial.setting
        seen.setdefault(variant.name, set()).add((setting.workers, setting.sequences))
        return train(variant, trouble, trial, progress, going)

    monkeypatch.setattr(text_runs, "train", watched)
    written, drawn = tmp_path / "growth.json", tmp_path / "growth.png"
    command = ["--work", str(tmp_path / "work"), "--json", str(written), "--plot", str(drawn)]
    command += ["--steps", "2", "--sequences", "2", "--layers", "1", "--seeds", "1"]
    growth.main([*command, "--variants", *WAYS])
    assert seen == dict(zip(WAYS, ({(8, 2)}, {(8, 2)}, {(16, 1)}), strict=True))
    ways = json.loads(written.read_text(encoding="utf-8"))["ways"]
    assert list(ways) == WAYS
    assert ways["dense Muon"]["received"] is None
    for way, others in ((WAYS[1], 7), (WAYS[2], 15)):
        assert ways[way]["received"] == others * ways[way]["bytes_a_round"]
        assert ways[way]["above_muon"]["of"] == "dense Muon"
    assert ways[WAYS[2]]["beside"]["of"] == WAYS[1]
    assert drawn.stat().st_size > 1000
    assert "16 members" in capsys.readouterr().out


def test_one_who_speaks_for_all_trains_on_the_same_tokens(growth: Any, tmp_path: Path) -> None:
    written = tmp_path / "growth.json"
    way = "32 members, one speaks for all by 1 bit of 4"
    command = ["--work", str(tmp_path / "work"), "--json", str(written), "--seeds", "1"]
    command += ["--steps", "2", "--sequences", "4", "--layers", "1"]
    growth.main([*command, "--variants", "32 members, k = 8, the default now", way])
    ways = json.loads(written.read_text(encoding="utf-8"))["ways"]
    found = ways[way]
    assert found["received"] == 31 * found["bytes_a_round"]
    # k = 8 from every member takes twice as much as k = 64 plus a quarter of a bit per element once.
    everybody = ways["32 members, k = 8, the default now"]["received"]
    assert found["received"] == pytest.approx(everybody / 2, rel=0.1)
    assert found["losses"][0] < 5.5


def test_how_k_may_fall_as_members_grow(growth: Any) -> None:
    """Twice the members improve by 1 %, twice the coefficients by 2 %."""
    ways = {
        f"{members} members, k = {k}": {"above_muon": {"percent": 12.0 - twice - 2.0 * more}}
        for members, twice in ((8, 0), (16, 1), (32, 2))
        for k, more in ((2, 1), (4, 2))
    }
    now = {f"{way}, the default now": {"above_muon": {"percent": 1.0}} for way in ways}
    found = growth.trend_of({"dense Muon": {}, **ways, **now}, "signs")
    assert found["k_each"] == pytest.approx(2**-0.5)
    assert found["trend"]["residual"] == pytest.approx(0.0, abs=1e-9)
    assert growth.trend_of({"8 members, k = 8": ways["8 members, k = 2"]}, "signs") == {}


def test_sequences_that_do_not_divide_are_refused(growth: Any) -> None:
    with pytest.raises(SystemExit, match="multiple of 8"):
        growth.main(["--workers", "3", "--sequences", "2"])


def test_panels_are_told_so_much_and_liars_cost_something(growth: Any, tmp_path: Path) -> None:
    written = tmp_path / "growth.json"
    honest = "32 members, panels by 1 bit of 4"
    command = ["--work", str(tmp_path / "work"), "--json", str(written), "--seeds", "1"]
    command += ["--steps", "12", "--sequences", "4", "--layers", "1"]
    growth.main([*command, "--variants", honest, f"{honest}, a quarter lie"])
    ways = json.loads(written.read_text(encoding="utf-8"))["ways"]
    alone, lied = ways[honest], ways[f"{honest}, a quarter lie"]
    assert alone["received"] == pytest.approx(31 * alone["bytes_a_round"])
    assert alone["bytes_a_round"] == lied["bytes_a_round"]
    assert alone["loss"] < lied["loss"]


def swarm_of(growth: Any, members: int, **choices: Any) -> tuple[Any, list[Any]]:
    """Return the aggregators of a swarm with `members` members, and the tensors of its model."""
    panels = importlib.import_module("panels")
    table = [ParameterSpec(name="a", shape=(128, 64)), ParameterSpec(name="b", shape=(64,))]
    trial = SimpleNamespace(table=table, setting=SimpleNamespace(workers=members))
    spoken = panels.Panels(rotation_steps=4, **choices).listener(trial)
    return spoken, list(update_layout(table, 64, 64).tensors)


def told_by_all(spoken: Any, tensors: list[Any], members: int, number: int) -> list[torch.Tensor]:
    ones = [torch.ones(each.blocks, each.block_rows, each.block_columns) for each in tensors]
    told = [spoken.told(member, ones, number) for member in range(members)]
    return [torch.stack(each).sum(0) for each in zip(*told, strict=True)]


def test_a_panel_sends_the_signs_that_it_was_told(growth: Any) -> None:
    spoken, tensors = swarm_of(growth, 6)

    sent = spoken.speak(told_by_all(spoken, tensors, 6, 1), 1)

    for found, tensor in zip(sent, tensors, strict=True):
        assert set(found.unique().tolist()) <= {0.0, 1.0}
        assert (found.flatten(1).sum(1) == tensor.top_k).all()


def test_a_lone_liar_makes_its_panel_say_nothing_and_is_struck(growth: Any) -> None:
    spoken, tensors = swarm_of(growth, 9, liars=1, term=1)

    silent = []
    for number in (1, 2, 3, 4):
        sent = spoken.speak(told_by_all(spoken, tensors, 9, number), number)
        silent.append(sum(not block.any() for found in sent for block in found.flatten(1)))

    # One of three sections, each of which is a block; then two epochs without it, and it is back.
    assert silent == [1, 0, 0, 1]


def test_nothing_is_told_with_one_sign_and_then_with_the_other(growth: Any) -> None:
    spoken, _ = swarm_of(growth, 3)
    found = [torch.tensor([[[0.0, 1.0], [-1.0, 0.0]]])]

    told = [spoken.told(0, found, number)[0].flatten().tolist() for number in (1, 4, 5, 9)]

    first, second = [1.0, 1.0, -1.0, 1.0], [-1.0, 1.0, -1.0, -1.0]
    assert told == [first, first, second, first]
