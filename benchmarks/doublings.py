"""The effect of each doubling: a plane fitted through measurements over the logarithms of their
parameters.

A loss's excess in percent, or the logarithm of a rate, is modelled as a constant plus a term for
each doubling of the coefficients, of the members, or of the parameters. It is the simplest model of
a trend; the distance of the measurements from it is reported with it (`residual`), and its values
outside of the measured range are guesses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

Place = Mapping[str, float]
"""The parameters of a measurement, by name; positive numbers, with the same names in all
measurements."""


@dataclass(frozen=True, kw_only=True)
class Doublings:
    """The fitted plane."""

    at_one: float
    """The value where every parameter is 1."""
    each: dict[str, float]
    """By name: the change per doubling."""
    residual: float
    """Root mean square of the measurements' distance from the plane, over the remaining degrees of
    freedom; 0 where none remains."""

    def at(self, place: Place) -> float:
        """Return the plane's value at a place."""
        return self.at_one + sum(
            slope * math.log2(place[name]) for name, slope in self.each.items()
        )

    def traded(self, name: str, against: str) -> float | None:
        """Return the factor by which `against` must grow for each doubling of `name` so that the
        value stays the same; None where more of `against` does not lower it."""
        lower = -self.each[against]
        return 2.0 ** (self.each[name] / lower) if lower > 0 else None


def fit(measured: Sequence[tuple[Place, float]]) -> Doublings:
    """Fit the plane by least squares. Raise `ValueError` where the measurements do not determine
    one: fewer than unknowns, or all with the same value of a parameter."""
    names = list(measured[0][0]) if measured else []
    rows = np.array([[1.0, *(math.log2(place[name]) for name in names)] for place, _ in measured])
    values = np.array([value for _, value in measured])
    if len(measured) <= len(names) or np.linalg.matrix_rank(rows) <= len(names):
        raise ValueError(f"{len(measured)} measurements do not tell what {', '.join(names)} bring")
    solved = np.linalg.lstsq(rows, values, rcond=None)[0]
    left = len(measured) - len(names) - 1
    apart = values - rows @ solved
    return Doublings(
        at_one=float(solved[0]),
        each={name: float(slope) for name, slope in zip(names, solved[1:], strict=True)},
        residual=math.sqrt(float(apart @ apart) / left) if left else 0.0,
    )


def trend(measured: Sequence[tuple[Place, float]], grows: str) -> dict[str, Any]:
    """Return, for JSON, the plane, and as `k_each` the factor by which k must grow for each doubling
    of the growing parameter so that the value stays the same; empty where the measurements determine
    no plane."""
    try:
        plane = fit(measured)
    except ValueError:
        return {}
    return {"trend": asdict(plane), "k_each": plane.traded(grows, "k")}
