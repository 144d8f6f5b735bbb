"""Planes fitted through measurements."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def doublings(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(checkout / "benchmarks")
    return importlib.import_module("doublings")


def test_a_plane_is_found_again(doublings: Any) -> None:
    places = [{"k": k, "members": n} for k in (2.0, 8.0, 32.0) for n in (8.0, 64.0)]
    made = doublings.Doublings(at_one=10.0, each={"k": -1.5, "members": 0.5}, residual=0.0)
    found = doublings.fit([(place, made.at(place)) for place in places])
    assert found.at_one == pytest.approx(10.0)
    assert found.each == pytest.approx(made.each)
    assert found.residual == pytest.approx(0.0, abs=1e-9)
    assert found.at({"k": 16.0, "members": 32.0}) == pytest.approx(10.0 - 6.0 + 2.5)


def test_the_residual_is_the_distance_for_each_degree_of_freedom(doublings: Any) -> None:
    # On a line over x = 1, 2, 4, 8 (logarithms 0 to 3) the values ±1, ∓1 leave a known residual.
    places = [{"x": 2.0**power} for power in range(4)]
    found = doublings.fit(list(zip(places, (1.0, -1.0, -1.0, 1.0), strict=True)))
    assert found.each["x"] == pytest.approx(0.0)
    assert found.residual == pytest.approx((4.0 / 2) ** 0.5)
    two = doublings.fit(list(zip(places[:2], (1.0, 3.0), strict=True)))
    assert (two.each["x"], two.residual) == (pytest.approx(2.0), 0.0)


def test_one_doubling_is_traded_for_another(doublings: Any) -> None:
    plane = doublings.Doublings(at_one=0.0, each={"k": -2.0, "n": 1.0, "m": -2.0}, residual=0.0)
    assert plane.traded("n", "k") == pytest.approx(2**0.5)
    assert plane.traded("m", "k") == pytest.approx(0.5)
    assert plane.traded("k", "n") is None


@pytest.mark.parametrize(
    "places",
    [[], [{"k": 8.0}], [{"k": 8.0}, {"k": 8.0}, {"k": 8.0}]],
    ids=["nothing", "too few", "all alike"],
)
def test_what_determines_no_plane_is_refused(doublings: Any, places: list[Any]) -> None:
    with pytest.raises(ValueError, match="do not tell"):
        doublings.fit([(place, 1.0) for place in places])
