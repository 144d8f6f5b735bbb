"""What each doubling brings: a plane through measurements over the logarithms of what they depend on.

A loss's excess in percent, or the logarithm of a rate, is taken as a number, plus another one for each
doubling of the coefficients, of the members, or of the parameters. It is the least that can be said of
a trend; how far the measurements lie from it is said with it (`residual`), and what it says outside of
what was measured is a guess.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

Place = Mapping[str, float]
"""What a measurement depends on, by name; positive numbers, the same names in all of them."""


@dataclass(frozen=True, kw_only=True)
class Doublings:
    """The plane."""

    at_one: float
    """The value where everything is 1."""
    each: dict[str, float]
    """By name: what a doubling adds."""
    residual: float
    """Root mean square of the measurements' distance from the plane, over the degrees of freedom left;
    0 where none is left."""

    def at(self, place: Place) -> float:
        """The value that the plane has there."""
        return self.at_one + sum(
            slope * math.log2(place[name]) for name, slope in self.each.items()
        )

    def traded(self, name: str, against: str) -> float | None:
        """By how much `against` has to be multiplied for each doubling of `name` so that the value stays
        as it is; None where more of `against` does not lower it."""
        lower = -self.each[against]
        return 2.0 ** (self.each[name] / lower) if lower > 0 else None


def fit(measured: Sequence[tuple[Place, float]]) -> Doublings:
    """The plane with the least squares. Raise `ValueError` where the measurements do not determine one:
    fewer than there are unknowns, or all with the same value of something."""
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
    """For JSON: the plane, and as `k_each` by how much k has to be multiplied for each doubling of what
    grows so that the value stays as it is; nothing where the measurements determine no plane."""
    try:
        plane = fit(measured)
    except ValueError:
        return {}
    return {"trend": asdict(plane), "k_each": plane.traded(grows, "k")}
