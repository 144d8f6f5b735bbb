"""What follows from several runs: differences over seeds, and planes over the settings' logarithms."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

# The 95 % quantile of Student's t by degrees of freedom; the normal one beyond.
_T95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833)

Place = Mapping[str, float]
"""The settings of a measurement by name, positive, with the same names in all measurements."""


def percent_above(losses: Sequence[float], beside: Sequence[float]) -> dict[str, float | None]:
    """Return how far losses are above others of the same seeds, in percent: the mean, its standard
    error, and the least margin by which two one-sided tests at 5 % (TOST) call them equivalent; the
    latter two are None for one seed."""
    apart = [100 * (loss / other - 1) for loss, other in zip(losses, beside, strict=True)]
    mean, error, margin = statistics.fmean(apart), None, None
    if len(apart) > 1:
        error = statistics.stdev(apart) / math.sqrt(len(apart))
        free = len(apart) - 1
        quantile = _T95[free - 1] if free <= len(_T95) else 1.645
        margin = abs(mean) + quantile * error
    return {"percent": mean, "error": error, "equivalent_within": margin}


@dataclass(frozen=True, kw_only=True)
class Plane:
    """A constant plus a term for each doubling of each setting: the simplest model of a trend. Its
    values outside of the measured range are guesses."""

    at_one: float
    """The value where every setting is 1."""
    each: dict[str, float]
    """By name: the change for each doubling."""
    residual: float
    """Root mean square of the measurements' distance from the plane, over the remaining degrees of
    freedom; 0 where none remains."""
    spread: list[list[float]]
    """The inverse of the normal matrix: how uncertain the terms are, in squares of `residual`."""

    def at(self, place: Place) -> tuple[float, float]:
        """Return the plane's value at a place, and the standard deviation of a measurement there."""
        row = np.array([1.0, *(math.log2(place[name]) for name in self.each)])
        value = float(row @ np.array([self.at_one, *self.each.values()]))
        return value, self.residual * math.sqrt(1 + float(row @ np.array(self.spread) @ row))


def fit(measured: Sequence[tuple[Place, float]]) -> Plane:
    """Fit a plane by least squares. Raise `ValueError` where the measurements do not determine one."""
    names = list(measured[0][0]) if measured else []
    rows = np.array([[1.0, *(math.log2(place[name]) for name in names)] for place, _ in measured])
    values = np.array([value for _, value in measured])
    if len(measured) <= len(names) or np.linalg.matrix_rank(rows) <= len(names):
        raise ValueError(f"{len(measured)} measurements do not determine {len(names) + 1} terms")
    solved = np.linalg.lstsq(rows, values, rcond=None)[0]
    apart, left = values - rows @ solved, len(measured) - len(names) - 1
    return Plane(
        at_one=float(solved[0]),
        each={name: float(slope) for name, slope in zip(names, solved[1:], strict=True)},
        residual=math.sqrt(float(apart @ apart) / left) if left else 0.0,
        spread=np.linalg.inv(rows.T @ rows).tolist(),
    )
