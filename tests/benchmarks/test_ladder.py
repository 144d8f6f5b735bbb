"""The benchmark of growing models: the tokens grow with the parameters, and it reports a trend."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from small_text import make_runs_small


@pytest.fixture
def ladder(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    make_runs_small(monkeypatch)
    return importlib.import_module("ladder")


def test_tokens_grow_with_the_parameters(
    ladder: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written, drawn = tmp_path / "ladder.json", tmp_path / "ladder.png"
    command = ["--work", str(tmp_path / "work"), "--json", str(written), "--plot", str(drawn)]
    command += ["--sizes", "0.14M", "0.3M", "--tokens", "0.006", "--sequences", "1"]
    command += ["--workers", "2", "--seeds", "1", "--variants", ladder.MUON, "k = 2", "k = 32"]
    ladder.main(command)
    measured = json.loads(written.read_text(encoding="utf-8"))
    for size, steps in (("0.14M", 3), ("0.3M", 7)):
        found = measured["sizes"][size]
        assert found["parameters"] == ladder.parameters_of(*ladder.SIZES[size])
        assert found["settings"]["steps"] == steps
        assert list(found["ways"]) == [ladder.MUON, "k = 2", "k = 32"]
    assert set(measured["trend"]["each"]) == {"parameters", "k"}
    assert drawn.stat().st_size > 1000
    assert "for each doubling" in capsys.readouterr().out


@pytest.mark.parametrize("size", ["0.14M", "0.3M", "0.9M", "3M"])
def test_parameters_are_counted(ladder: Any, size: str) -> None:
    training = importlib.import_module("training")
    hidden, layers = ladder.SIZES[size]
    options = {"workers": 1, "sequences": 1, "steps": 1, "seed": 0, "device": "cpu"}
    setting = training.Setting(hidden=hidden, layers=layers, **options)
    text = importlib.import_module("small_text").counting()
    assert training.Trial(setting, *text, 8).elements == ladder.parameters_of(hidden, layers)


def test_the_search_for_a_rate_begins_where_others_of_the_kind_were_best(ladder: Any) -> None:
    options = argparse.Namespace(workers=2, sequences=1, tokens=0.006, work=None)
    rung = ladder.Rung(options, "0.14M")
    rates = {way: rung.default_rate(way) for way in ladder.WAYS}
    assert {rates.pop(way) for way in (ladder.MUON, "dense AdamW")} == {2e-3}
    assert set(rates.values()) == {8e-3}


def test_what_is_kept_makes_up_for_what_grows(ladder: Any) -> None:
    """Twice the parameters cost 2 %, four times the coefficients save 4 %: k doubles with the model."""
    sizes = {}
    for size, parameters, worse in (("0.14M", 2**17, 0.0), ("0.3M", 2**18, 2.0)):
        ways = {
            f"k = {k}": {"top_k": k, "above_muon": {"percent": 10.0 + worse - 2.0 * doublings}}
            for k, doublings in ((2, 0), (8, 2), (32, 4))
        }
        # The current default has a plane of its own.
        ways["k = 8, the default now"] = {"top_k": 8, "above_muon": {"percent": 1.0}}
        sizes[size] = {"parameters": parameters, "ways": ways}
    found = ladder.trend_of(sizes)
    assert found["k_each"] == pytest.approx(2.0)
    assert found["predicted"]["k"] == 8.0
    assert found["predicted"]["percent"] == pytest.approx(6.0 + 2.0 * 13.166, abs=0.01)
    assert ladder.trend_of({"0.14M": sizes["0.14M"]}) == {}
    assert ladder.trend_of(sizes, ["k = 8, the default now"]) == {}
