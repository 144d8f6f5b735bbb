"""The verdict of `create` on the amount of data."""

from __future__ import annotations

from typing import Any

import pytest
from distro_node.node.create.summary import data_verdict

ENOUGH: dict[str, Any] = {
    "rounds": 900.0,
    "epochs": 0.5,
    "tokens": 40_000,
    "read": 20_000.0,
    "parameters": 1000,
    "fresh": True,
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "enough data: no text is read twice"),
        ({"epochs": 2.0, "read": 80_000.0}, "enough data: it repeats after about 900 rounds"),
        (
            {"epochs": 9.0, "read": 360_000.0},
            "too little data for this run: it repeats after about 900 rounds, 9 epochs in all",
        ),
        (
            {"tokens": 4000, "read": 2000.0},
            "too little data for this model: it repeats after about 900 rounds; a new model usually "
            "needs about 20 tokens a parameter, and this data has 4",
        ),
        ({"tokens": 4000, "read": 2000.0, "fresh": False}, "enough data: no text is read twice"),
        (
            {"read": 10_000.0, "epochs": 0.25},
            "a short run for this model: a new model usually needs about 20 tokens a parameter, which "
            "takes 450 rounds",
        ),
    ],
)
def test_the_data_is_judged(changes: dict[str, Any], said: str) -> None:
    assert data_verdict(**ENOUGH | changes).startswith(said)
