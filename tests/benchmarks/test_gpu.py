"""`benchmarks/gpu.py`, tried without a card: the minutes of a real one are too dear for faults of the
script."""

from __future__ import annotations

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

PARTS = "machine,session,throughput-small,round,memory"


@pytest.fixture
def gpu(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    # By its path: a checkout in a folder called `gpu` is a package of this name.
    found = spec_from_file_location("gpu_benchmark", checkout / "benchmarks" / "gpu.py")
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    # Its dataclasses look their module up.
    monkeypatch.setitem(sys.modules, "gpu_benchmark", module)
    found.loader.exec_module(module)
    return module


def run(gpu: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    out = folder / "found.json"
    words = ["--tiny", "--device", "cpu", "--parts", PARTS, "--json", str(out)]
    monkeypatch.setattr("sys.argv", ["gpu.py", *words])
    gpu.main()
    return json.loads(out.read_text())


def test_each_part_comes_to_its_end(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run(gpu, tmp_path, monkeypatch)
    assert not [part for part, facts in found.items() if "failed" in facts]
    assert found["machine"]["layers_in"] == "torch.float32"
    for kind in ("muon, scaled", "orthogonal, sign"):
        assert found["session"][kind] == {"equal_rounds": 10, "of": 10, "equal_snapshots": True}
    assert found["throughput tiny"]["plain_tokens_per_second"] > 0
    assert found["round"]["apply, scaled"]["wall_ms"] > 0
    assert found["memory"] == {"left_out": "needs a CUDA device"}


def test_a_part_that_fails_reports_it_and_the_next_begins(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("CUDA error: no kernel image is available")

    monkeypatch.setitem(gpu.PARTS, "session", (1, fails))
    monkeypatch.setattr(gpu, "throughput", fails)
    found = run(gpu, tmp_path, monkeypatch)
    assert found["session"]["failed"] == "RuntimeError: CUDA error: no kernel image is available"
    assert "failed" in found["throughput-small"]
    assert "failed" not in found["round"]
