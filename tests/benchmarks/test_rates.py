"""The rule for rates: fitted where losses are lowest, and tested on data it has not seen."""

from __future__ import annotations

import importlib
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from distro_node.node.create.rates import default_rate
from distro_node.protocol.wire.manifest import OptimizerSpec

RATES = (1e-3, 2e-3, 4e-3, 8e-3, 16e-3)


@pytest.fixture
def rates(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    return importlib.import_module("rates")


def runs_of(rates: Any, members: int, k: int, best: float, optimizer: Any = None) -> list[Any]:
    """Return a swarm's runs, with losses on a parabola around a rate."""
    spec = OptimizerSpec(top_k=k) if optimizer is None else optimizer
    return [
        rates.Tried(
            way=f"{members} members, k = {k}",
            rate=rate,
            seed=0,
            loss=2.0 + 0.1 * math.log2(rate / best) ** 2,
            curve=[],
            bytes_a_round=1.0,
            reduction=1.0,
            top_k=k,
            settings={"workers": 8, "steps": 400, "sequences": 8},
            parameters=1000,
            members=members,
            optimizer=asdict(spec),
        )
        for rate in RATES
    ]


def test_the_lowest_lies_between_the_tried(rates: Any) -> None:
    found = rates.lowest(runs_of(rates, 16, 4, 3e-3))
    assert found.place == {
        "parameters": 1000.0,
        "members": 16.0,
        "k": 4.0,
        "steps": 400.0,
        # The round's sequences are divided among twice as many members.
        "sequences": 4.0,
    }
    assert found.rate == pytest.approx(3e-3)
    assert found.loss == pytest.approx(2.0)
    # A factor of two away costs 0.1 of 2 nats.
    assert found.above(6e-3) == pytest.approx(5.0)


def test_a_rate_at_the_edge_is_no_best_one(rates: Any) -> None:
    assert rates.lowest(runs_of(rates, 8, 8, 1e-4)) is None
    assert rates.lowest(runs_of(rates, 8, 8, 3e-3)[:2]) is None


def test_swarms_are_those_with_one_optimizer(rates: Any) -> None:
    smoothed, ours = OptimizerSpec(smoothing=0.5), OptimizerSpec()
    both = [*runs_of(rates, 8, 8, 3e-3, smoothed), *runs_of(rates, 8, 2, 3e-3)]
    for optimizer, k in ((smoothed, 8), (ours, 2)):
        (group,) = rates.swarms(both, optimizer)
        assert [run.top_k for run in group] == [k] * len(RATES)


def test_a_rule_is_found_and_tested_on_the_swarm_left_out(
    rates: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice the members, and half of the coefficients, each change the rate by the root of two; one
    swarm is off by a factor of two."""
    file, written = tmp_path / "runs.jsonl", tmp_path / "rates.json"
    runs = importlib.import_module("runs")
    for members, k in ((8, 8), (8, 2), (16, 4), (32, 8), (32, 2), (64, 4)):
        best = 4e-3 * math.sqrt(members / 16 * 4 / k)
        if (members, k) == (16, 4):
            best *= 2
        for run in runs_of(rates, members, k, best):
            runs.append_run(file, run)
    command = [str(file), "--over", "members", "k", "--json", str(written)]
    rates.main(command)
    swarms = json.loads(written.read_text(encoding="utf-8"))["swarms"]
    off = next(
        each for each in swarms if each["place"]["members"] == 16 and each["place"]["k"] == 4
    )
    assert off["foretold"] == pytest.approx(4e-3)
    assert off["costs"] == pytest.approx(5.0)
    assert off["create"] == default_rate(1000, "sign")
    doublings = math.log2(off["create"] / 8e-3)
    assert off["create_costs"] == pytest.approx(5.0 * doublings**2)
    assert "each doubling of members" in capsys.readouterr().out
    rates.main([*command, "--over"])
    without = json.loads(written.read_text(encoding="utf-8"))["swarms"]
    others = [each["rate"] for each in without if each["place"] != off["place"]]
    found = next(each for each in without if each["place"] == off["place"])
    assert found["foretold"] == pytest.approx(math.prod(others) ** (1 / len(others)))
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        rates.main([*command, "--over", "parameters"])
    assert ended.value.code == 1
    assert "do not tell" in capsys.readouterr().err
