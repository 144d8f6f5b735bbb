"""Score of an audit: how well the signs of an update agree with what an assigned sequence contributes to
its coefficients, in standard deviations of chance.

The weights are the changes that the sequence makes to the update's coefficients, as the auditor computes
them (`node/trainer/audit_score`). A member that never saw the sequence can agree with what is peculiar
to it only by chance: each sign is then a coin toss, and the score has mean 0 and standard deviation 1
whatever the weights. Weights are rounded to integers, so that any two machines get the same sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# The largest weight, and how many root mean squares it stands for: an outlying coefficient weighs no
# more than eight typical ones. With 2^40 coefficients the sum of squares stays below 2^62.
_LARGEST = 1024
_WIDEST = 8.0

# No score that is computed comes near it. One that is made up would not fit where states are saved.
_MOST_THOUSANDTHS = 1 << 40

_Values = npt.NDArray[np.floating] | npt.NDArray[np.integer]


@dataclass(frozen=True)
class SignSums:
    """Integers from which a score follows."""

    total: int
    """Σ sign · weight."""
    squares: int
    """Σ weight²: the variance of the total if signs are coin tosses."""

    @property
    def score(self) -> float:
        """Standard deviations above chance; 0 if there is nothing to compare."""
        return self.total / math.sqrt(self.squares) if self.squares else 0.0

    @property
    def thousandths(self) -> int:
        """The score in thousandths, truncated towards 0 and to at most 2^40, in integers: the same on
        every machine."""
        if not self.squares:
            return 0
        size = math.isqrt(1_000_000 * self.total * self.total // self.squares)
        size = min(size, _MOST_THOUSANDTHS)
        return size if self.total >= 0 else -size


def sign_sums(signs_N: npt.NDArray[np.int8], weights_N: npt.NDArray[np.int16]) -> SignSums:
    """Return the agreement of an update's signs (±1) with an auditor's integer weights.

    Raises `ValueError` if their lengths differ.
    """
    if signs_N.shape != weights_N.shape or signs_N.ndim != 1:
        raise ValueError(f"{signs_N.shape} signs and {weights_N.shape} weights")
    weights = weights_N.astype(np.int64)
    return SignSums(int(weights @ signs_N.astype(np.int64)), int(weights @ weights))


def integer_weights(values_N: _Values) -> npt.NDArray[np.int16]:
    """Return weights in proportion to these values, as integers from -1,024 to 1,024.

    Values of eight times the root mean square or more get the largest weight. Non-finite values get
    weight 0, and if all values are 0, so are all weights.
    """
    values = np.nan_to_num(values_N.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    largest = float(np.abs(values).max(initial=0.0))
    if not largest:
        return np.zeros(values.shape, dtype=np.int16)
    # Divide before squaring: squares of a gradient's values could overflow.
    values = values / largest
    scale = _LARGEST / (_WIDEST * math.sqrt(float(np.mean(values**2))))
    return np.clip(np.rint(values * scale), -_LARGEST, _LARGEST).astype(np.int16)
