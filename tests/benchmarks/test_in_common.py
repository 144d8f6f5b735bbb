"""The benchmark of update overlap: it separates common and private parts where these are known."""

from __future__ import annotations

import importlib
import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_text import counting

BITS = 50.0


@pytest.fixture
def in_common(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    return importlib.import_module("in_common")


def spoken(momentum: torch.Tensor, top_k: int) -> SimpleNamespace:
    """Return a member that has just sent the strongest coefficients of its only matrix."""
    recipes = importlib.import_module("recipes")
    taken = momentum * recipes.strongest(momentum, top_k)
    return SimpleNamespace(momentum=[momentum - taken], taken=[taken])


def test_members_alike_have_everything_in_common(in_common: Any) -> None:
    momentum = torch.randn(3, 64, 64)
    found = in_common.measured([spoken(momentum, 8)] * 4, [True], BITS)
    assert found["common"] == pytest.approx(1.0, abs=1e-4)
    assert found["again"] == 1.0
    assert found["chance"] < 0.01
    assert found["a_bit"] == pytest.approx(found["sent"] * 4096 / BITS)


def test_strangers_have_nothing_in_common_but_by_chance(in_common: Any) -> None:
    members = [spoken(torch.randn(40, 64, 64), 64) for _ in range(4)]
    found = in_common.measured(members, [True], BITS)
    assert abs(found["common"]) < 0.01
    assert found["again"] == pytest.approx(found["chance"], abs=0.02)


def test_half_of_a_momentum_in_common_is_found(in_common: Any) -> None:
    shared = torch.randn(10, 64, 64)
    members = [spoken(shared + torch.randn(10, 64, 64), 8) for _ in range(4)]
    found = in_common.measured(members, [True], BITS)
    assert found["common"] == pytest.approx(0.5, abs=0.03)
    assert found["again"] > 3 * found["chance"]


def test_matrices_that_are_not_hidden_do_not_count(in_common: Any) -> None:
    hidden, other = torch.randn(2, 64, 64), torch.randn(2, 64, 64)
    members = [spoken(hidden, 8) for _ in range(2)]
    for member in members:
        # Embedding and head have nothing in common here.
        beside = spoken(other * torch.randn(2, 64, 64), 8)
        member.momentum += beside.momentum
        member.taken += beside.taken
    assert in_common.measured(members, [True, False], BITS)["common"] == pytest.approx(
        1.0, abs=1e-4
    )


def test_it_is_written(
    in_common: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(in_common, "read_corpus", lambda _paths, _heldout: counting())
    monkeypatch.setattr(in_common, "Trial", partial(in_common.Trial, heldout_sequences=8))
    written = tmp_path / "in_common.json"
    command = ["--sequences", "1", "--rounds", "4", "--every", "1", "--workers", "2"]
    in_common.main([*command, "--layers", "1", "--json", str(written)])
    document = json.loads(written.read_text(encoding="utf-8"))
    (run,) = document["runs"]
    assert run["sequences"] == 1
    assert 0 < run["sent"] < 1
    assert 0 < run["a_bit"] < document["most"]
    assert document["settings"]["workers"] == 2
    assert "common" in capsys.readouterr().out
