"""The benchmark of a member's round: its output has every part of each system."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def benchmark(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    return importlib.import_module("member_round")


def test_each_part_of_a_round_takes_time(benchmark: Any) -> None:
    found = benchmark.measure("0.9M", sequences=2, length=16, members=3, repeats=1)
    assert found["parameters"] == 984_192
    assert found["seconds"].keys() == {"AdamW", "Muon", "ours"}
    assert found["seconds"]["ours"].keys() == {"gradient", "encode", "step"}
    for parts in found["seconds"].values():
        # A member's `encode` is a difference of two times, which noise makes negative.
        assert parts["gradient"] > 0
        assert parts["step"] > 0
    assert found["times_plain"] > 0
