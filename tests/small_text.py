"""A text so regular that a model learns from it in two steps, for tests of learning benchmarks."""

from __future__ import annotations

import importlib
from functools import partial

import numpy as np
import pytest


def counting() -> tuple[np.ndarray, np.ndarray]:
    """Return the training and the held-out part, as bytes."""
    lines = "".join(f"{n} is followed by {n + 1}\n" for n in range(9000))
    whole = np.frombuffer(lines.encode(), "u1")
    return whole[:-40_000], whole[-40_000:]


def make_runs_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the benchmarks of text_runs.py, which are on the path, read that text, measure on eight
    sequences of it, and try only three rates."""
    text_runs = importlib.import_module("text_runs")
    monkeypatch.setattr(text_runs, "read_corpus", lambda _paths, _heldout: counting())
    monkeypatch.setattr(text_runs, "Trial", partial(text_runs.Trial, heldout_sequences=8))
    monkeypatch.setattr(importlib.import_module("runs"), "MOST_RATES", 3)
