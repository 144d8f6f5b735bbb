"""Privacy cost of noisy gradients: Rényi differential privacy, as opacus computes it.

Every round draws each sequence independently (Poisson sampling), as the bound of the subsampled
Gaussian mechanism assumes (Mironov et al., arXiv 1908.10530). For each Rényi order the costs of all
rounds add up, whatever their sampling rates and noise.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence

import numpy as np

from ...training.errors import TrainerFailed

# Rényi orders: dense at the low ones, which matter for a large ε, sparse at the high ones, which matter
# for a small ε.
_ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(12, 64), 80, 96, 128, 192, 256, 512, 1024)
_LEAST_NOISE, _MOST_NOISE = 0.05, 1e5
_HALVINGS = 40

Spent = Sequence[tuple[float, float, int]]
"""Rounds of one kind: sampling probability of a sequence, noise multiplier, number of rounds."""


def epsilon(spent: Spent, delta: float) -> float:
    """Return the least ε for which all these rounds together are (ε, δ)-differentially private."""
    return _epsilon(_total(spent), delta)


def noise_for(spent: Spent, limit: float, delta: float, rate: float, rounds: int) -> float:
    """Return the least noise with which `rounds` more rounds at this rate keep ε within the limit.

    Raises `TrainerFailed` (`bad_data`) if even the most noise does not.
    """
    before = _total(spent)

    def fits(noise: float) -> bool:
        return _epsilon(before + rounds * _of_one(rate, noise), delta) <= limit

    low, high = _LEAST_NOISE, _MOST_NOISE
    if not fits(high):
        raise TrainerFailed("bad_data", f"no noise keeps ε within {limit:g}")
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _total(spent: Spent) -> np.ndarray:
    total = np.zeros(len(_ORDERS))
    for rate, noise, rounds in spent:
        total += rounds * _of_one(rate, noise)
    return total


@functools.lru_cache(maxsize=1024)
def _of_one(rate: float, noise: float) -> np.ndarray:
    """Return the Rényi cost of one round at each order."""
    from opacus.accountants.analysis import rdp

    orders = list(_ORDERS)
    return np.array(rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=orders))


def _epsilon(total: np.ndarray, delta: float) -> float:
    from opacus.accountants.analysis import rdp

    if not total.any():
        return 0.0
    with warnings.catch_warnings():
        # Opacus warns at every step of a search when the best order is the first or the last.
        warnings.simplefilter("ignore")
        found, _ = rdp.get_privacy_spent(orders=list(_ORDERS), rdp=total.tolist(), delta=delta)
    return float(found)
