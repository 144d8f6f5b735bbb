"""What noisy gradients have cost in privacy: Rényi differential privacy, as opacus counts it.

Every round draws each sequence with a probability of its own (Poisson sampling), which is what the bound
of the subsampled Gaussian mechanism (Mironov et al., arXiv 1908.10530) is about. Rounds add up order by
order, whatever their rates and noise.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence

import numpy as np

from .errors import TrainerFailed

# Fine where ε is of some size, and far where it is small.
_ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(12, 64), 80, 96, 128, 192, 256, 512, 1024)
_LEAST_NOISE, _MOST_NOISE = 0.05, 1e5
_HALVINGS = 40

Spent = Sequence[tuple[float, float, int]]
"""Rounds of one kind: the probability with which a sequence is drawn, the noise, and how many rounds."""


def epsilon(spent: Spent, delta: float) -> float:
    """The least ε for which all these rounds together are (ε, δ)-differentially private."""
    return _epsilon(_total(spent), delta)


def noise_for(spent: Spent, limit: float, delta: float, rate: float, rounds: int) -> float:
    """The least noise with which so many more rounds at this rate leave ε within the limit.

    Raises `TrainerFailed` (`bad_data`) where no noise does.
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
    """What one round costs at each order."""
    from opacus.accountants.analysis import rdp

    orders = list(_ORDERS)
    return np.array(rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=orders))


def _epsilon(total: np.ndarray, delta: float) -> float:
    from opacus.accountants.analysis import rdp

    if not total.any():
        return 0.0
    with warnings.catch_warnings():
        # That the first or the last order is the best is said with every try of a search.
        warnings.simplefilter("ignore")
        found, _ = rdp.get_privacy_spent(orders=list(_ORDERS), rdp=total.tolist(), delta=delta)
    return float(found)
