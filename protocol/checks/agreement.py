"""How well an update's signs agree with what a dealt sequence says, in standard deviations of chance.

What the checker has computed of the sequence are the weights. Who never saw the sequence can hardly
agree with what is its own but by chance: then every sign is the throw of a coin, and the score has mean
0 and deviation 1 whatever the weights. Weights are rounded to whole numbers, so a sum that two machines
form is the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# The largest weight, and how many root mean squares it stands for: one coefficient out of proportion has
# no more say than eight usual ones. With 2^40 coefficients the sum of squares stays below 2^62.
_LARGEST = 1024
_WIDEST = 8.0

_Values = npt.NDArray[np.floating] | npt.NDArray[np.integer]


@dataclass(frozen=True)
class Agreement:
    """Whole numbers from which a score follows."""

    total: int
    """Σ sign · weight."""
    squares: int
    """Σ weight²: what the square of the total is on average where signs are coins."""

    @property
    def score(self) -> float:
        """Standard deviations of chance above none; 0 where there is nothing to compare with."""
        return self.total / math.sqrt(self.squares) if self.squares else 0.0

    @property
    def thousandths(self) -> int:
        """The score in thousandths, towards 0, in whole numbers alone: the same for everybody."""
        if not self.squares:
            return 0
        size = math.isqrt(1_000_000 * self.total * self.total // self.squares)
        return size if self.total >= 0 else -size

    def reaches(self, thousandths: int) -> bool:
        """Whether the score is at least so many thousandths of a deviation, in whole numbers alone."""
        signed = 1_000_000 * self.total * abs(self.total)
        return self.squares > 0 and signed >= thousandths * abs(thousandths) * self.squares


def agreement(signs_N: npt.NDArray[np.int8], weights_N: npt.NDArray[np.int16]) -> Agreement:
    """What an update's signs (±1) and a checker's whole weights come to.

    Raises `ValueError` if they are not equally many.
    """
    if signs_N.shape != weights_N.shape or signs_N.ndim != 1:
        raise ValueError(f"{signs_N.shape} signs and {weights_N.shape} weights")
    weights = weights_N.astype(np.int64)
    return Agreement(int(weights @ signs_N.astype(np.int64)), int(weights @ weights))


def whole_weights(values_N: _Values) -> npt.NDArray[np.int16]:
    """Weights in proportion to these values, as whole numbers of at most 1,024 either way.

    A value of eight times the root mean square has the largest; larger ones, too. What is not finite
    weighs nothing, and so does everything where there is nothing but zeros.
    """
    values = np.nan_to_num(values_N.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    largest = float(np.abs(values).max(initial=0.0))
    if not largest:
        return np.zeros(values.shape, dtype=np.int16)
    # Divided first: squares of what a gradient may hold would leave the range of numbers.
    values = values / largest
    scale = _LARGEST / (_WIDEST * math.sqrt(float(np.mean(values**2))))
    return np.clip(np.rint(values * scale), -_LARGEST, _LARGEST).astype(np.int16)
