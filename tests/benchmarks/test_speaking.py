"""The benchmark of the cost of aggregation: every part of a step is measured."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from distro_node.protocol.codec.aggregate import aggregate_bytes
from distro_node.protocol.codec.sections import sections
from distro_node.protocol.codec.update import update_layout


@pytest.fixture
def speaking(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    return importlib.import_module("speaking")


def test_a_step_of_panels_stands_beside_one_of_everybody(
    speaking: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = tmp_path / "speaking.json"
    words = ["speaking.py", "--size", "10M", "--members", "7", "--json", str(written)]
    monkeypatch.setattr(sys, "argv", words)
    speaking.main()
    measured = json.loads(written.read_text(encoding="utf-8"))
    panels, everybody = measured["panels"], measured["everybody"]
    table = importlib.import_module("llamas").llama("10M")
    cut = sections(update_layout(table, 64, 64), 2)
    assert panels["sections"] == 2
    assert panels["tallies_bytes"] == sum(aggregate_bytes(section, 7) for section in cut)
    assert panels["sheet_bytes"] == pytest.approx(measured["parameters"] / 80, rel=0.01)
    assert everybody["received_bytes"] == 6 * update_layout(table, 64, 8).body_bytes
    assert measured["seconds"].keys() == measured["megabytes"].keys()
    # The section's momentum, of four bytes per parameter.
    held = measured["megabytes"]["begin a term"]
    assert held == pytest.approx(2 * measured["parameters"] / 1e6, rel=0.02)
